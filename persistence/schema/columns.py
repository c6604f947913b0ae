"""What the tables share: their metadata, and columns and rules that many of them have."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    text,
)

metadata = MetaData(
    naming_convention={"pk": "%(table_name)s_pkey", "fk": "%(table_name)s_%(column_0_name)s_fkey"},
)


def instant(name: str, *, nullable: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()"))


def count(name: str, *, kind: type[BigInteger] | type[Integer] = Integer, start: int = 0) -> Column[object]:
    return Column(name, kind, nullable=False, server_default=text(str(start)))


def one_of(column: str, values: object, *, nullable: bool = False) -> str:
    listed = ", ".join(f"'{v}'" for v in values)  # type: ignore[attr-defined]
    rule = f"{column} IN ({listed})"
    return f"{column} IS NULL OR {rule}" if nullable else rule
