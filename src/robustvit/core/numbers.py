"""Number types of settings."""
from typing import Annotated

from pydantic import Field

from robustvit.core.component import Number, format_fraction, parse_number

Count = Annotated[int, Field(ge=1)]
UnitInterval = Annotated[Number, Field(ge=0, le=1)]
