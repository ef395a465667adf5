"""What a training takes, before it begins."""

from robustvit.planning.hardware import (
    Hardware as Hardware,
    hardware_from as hardware_from,
    parse_utilization as parse_utilization,
)
from robustvit.planning.plan import PhasePlan as PhasePlan, Plan as Plan, plan as plan
from robustvit.planning.sweep import SweepPlan as SweepPlan, plan_sweep as plan_sweep, sweep_text as sweep_text
from robustvit.planning.text import plan_facts as plan_facts, plan_text as plan_text
