"""What an analysis is: it looks at a model on images, and comes home with a finding."""

from typing import Annotated, Protocol

from robustvit.core.component import OneOf
from robustvit.core.finding import Finding
from robustvit.evaluation.subject import Subject


class Analysis(Protocol):
    """Looks at a model on images; called where the model is in eval mode and frozen."""

    def __call__(self, subject: Subject) -> Finding: ...


AnyAnalysis = Annotated[Analysis, OneOf("analysis")]
