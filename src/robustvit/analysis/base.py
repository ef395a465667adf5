"""What an analysis is: a model on images in, a finding out."""

from typing import Protocol

from robustvit.core.finding import Finding
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject


class Analysis(Protocol):
    """Called where the model is in eval mode and frozen; long ones resume through the store's ledger and folder.

    One that attacks has a field `threat`, which `analyze` fills where it is None.
    """

    def __call__(self, subject: Subject, store: Store) -> Finding: ...
