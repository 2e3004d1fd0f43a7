"""What all sections of a scenario share: the strict base model, number types, unions by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

MAX_TOKENS = 100_000_000
MAX_BLOCKS = 50_000_000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+ -]{0,79}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"


class Section(BaseModel):
    """One mapping of a scenario: unknown keys, coercions and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, json_schema_extra={"unit": "token"})]
Seconds = Annotated[float, Field(ge=0, le=1e9, json_schema_extra={"unit": "second"})]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e9, json_schema_extra={"unit": "second"})]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def key_tag(key: str) -> Tag:
    """Marks the member of a union that is chosen where `key` is present."""
    return Tag(f"<{key}>")


def is_tag(part: int | str) -> bool:
    """Whether a part of an error's location is a mark of `key_tag`, not a key."""
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def by_key(*keys: str) -> Discriminator:
    """Chooses the member of a union by the first of `keys` that a mapping has."""

    def choose(value: Any) -> str | None:
        present = value if isinstance(value, Mapping) else getattr(value, "model_fields_set", ())
        return next((key_tag(key).tag for key in keys if key in present), None)

    return Discriminator(
        choose,
        custom_error_type="no_deciding_key",
        custom_error_message="needs one of the keys " + ", ".join(keys),
    )


ContentSha256 = Annotated[
    str | None,
    Field(
        pattern=SHA256_PATTERN,
        description="SHA-256 of the file's uncompressed content, checked before it is parsed; lets"
        " a scenario name a file outside its own folder",
    ),
]
