"""`robustvit plan`."""

from typing import Annotated

import typer

from robustvit.cli.options import Overrides, RecipeArgument, optional


def plan(
    recipe: RecipeArgument,
    override: Overrides = None,
    hardware: Annotated[
        str | None, optional(help="NAME or NAME:COUNT, such as a100-80gb:8; default: this machine.")
    ] = None,
    flops: Annotated[float | None, optional(help="Peak rate of another device, in FLOP a second.")] = None,
    devices: Annotated[int | None, optional(help="How many of them, with --flops; default: 1.")] = None,
    precision: Annotated[
        str | None,
        optional(help="With --hardware: the rate of float32, tf32 or bf16; default: of the recipe's."),
    ] = None,
    utilization: Annotated[
        str | None, optional(help="Fractions of the peak rate, LOW,HIGH; default: by the kind of the model.")
    ] = None,
    images: Annotated[int | None, optional(help="So many training images, where the data are elsewhere.")] = None,
    price: Annotated[float | None, optional(help="Of a device and hour.")] = None,
    watts: Annotated[float | None, optional(help="Power of a device; default: the list's.")] = None,
    grid: Annotated[float | None, optional("--grid-intensity", help="Grams of CO2 for a kWh.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what a training takes, without training: passes, operations, memory, hours, energy and cost.

    Example: robustvit plan cifar10/vit_b2_trades --hardware a100-80gb:8 --images 50000 --price 2
    """
    import dataclasses
    import json

    from robustvit.core.errors import UserError
    from robustvit.planning import Hardware, hardware_from, parse_utilization, plan as make_plan, plan_facts, plan_text
    from robustvit.training import recipe_from

    given = {"--flops": flops, "--price": price, "--watts": watts, "--grid-intensity": grid, "--devices": devices}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: a number above 0")
    if hardware is not None and flops is not None:
        raise UserError("--hardware and --flops: give one of them")
    _refuse_without_effect(hardware, flops, devices, precision, utilization)
    device = None if flops is None else Hardware("device", devices or 1, flops, watts=watts)
    if hardware is not None:
        device = hardware_from(hardware, precision or recipe_from(recipe, override or []).precision)
        device = device if watts is None else dataclasses.replace(device, watts=watts)
    if grid is not None and watts is None and (device is None or device.watts is None):
        raise UserError(f"--grid-intensity {grid:g}: needs the power of a device; add --watts")
    used = None if utilization is None else parse_utilization(utilization)
    made = make_plan(recipe, override or [], hardware=device, images=images, utilization=used)
    if device is None and watts is not None:
        made = dataclasses.replace(made, watts=watts)
    if as_json:
        typer.echo(json.dumps(plan_facts(made, price, grid), indent=1))
    else:
        typer.echo(plan_text(made, price, grid))


def _refuse_without_effect(
    hardware: str | None, flops: float | None, devices: int | None, precision: str | None, utilization: str | None
) -> None:
    from robustvit.core.errors import UserError

    if devices is not None and flops is None:
        raise UserError(f"--devices {devices}: goes with --flops; --hardware NAME:{devices} takes so many of a name")
    if precision is not None and hardware is None:
        chosen = "--flops is the rate of one precision" if flops else "this machine computes in that of the recipe"
        raise UserError(f"--precision {precision}: goes with --hardware; {chosen}")
    if utilization is not None and hardware is None and flops is None:
        raise UserError(f"--utilization {utilization}: goes with --hardware or --flops; this machine is measured")
