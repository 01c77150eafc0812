"""`decode=json`: typed columns from values, by Spark's rules, whichever way they are read."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

import headwater
from headwater._arrow import SCHEMA as RECORDS
from headwater.errors import InvalidInputError
from headwater.spark._decode import JsonDecoder, JsonShape, inner_fields
from headwater.spark._schema import Origin

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ORIGIN = Origin("sales/orders", 3, 1)
#: Every type on its own, inside a struct, and in lists and maps.
PLAIN: dict[str, DataType] = {
    "flag": BooleanType(),
    "tiny": ByteType(),
    "small": ShortType(),
    "whole": IntegerType(),
    "big": LongType(),
    "real": FloatType(),
    "double": DoubleType(),
    "money": DecimalType(9, 2),
    "huge": DecimalType(38, 0),
    "text": StringType(),
    "day": DateType(),
    "at": TimestampType(),
    "clock": TimestampNTZType(),
}
SLOW: dict[str, DataType] = {"raw": BinaryType(), "named": MapType(StringType(), LongType())}


def struct(**kinds: DataType) -> StructType:
    """A schema of some columns."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def nested(kinds: dict[str, DataType]) -> StructType:
    """A schema with all of them, flat, in a struct, in a list, in a list of structs."""
    inner = struct(**kinds)
    lists = {f"{name}_list": ArrayType(kind) for name, kind in kinds.items()}
    return struct(**kinds, inner=inner, rows=ArrayType(inner), **lists)


def decode(
    values: list[bytes | None], schema: StructType
) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows, and the numbers of those that were malformed."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    found = JsonDecoder(arrow).decode(pa.array(values, pa.binary()))
    assert [column.type for column in found.columns] == arrow.types
    batch = pa.RecordBatch.from_arrays(found.columns, schema=arrow)
    return batch.to_pylist(), [row for row, _ in found.malformed]


def one(value: bytes | str, kind: DataType) -> object:
    """What becomes of a field `a` of one type; `ValueError` for a malformed value."""
    text = value if isinstance(value, bytes) else value.encode()
    rows, malformed = decode([b'{"a":' + text + b"}"], struct(a=kind))
    if malformed:
        raise ValueError(value)
    return rows[0]["a"]


def records(values: list[bytes | None], first: int = 40) -> pa.RecordBatch:
    """Records with these values, as a log hands them over."""
    numbers = list(range(first, first + len(values)))
    columns: dict[str, list[Any]] = {
        "sequence": numbers,
        "timestamp_ns": [number * 1000 for number in numbers],
        "key": [b"k"] * len(values),
        "value": values,
        "headers": [[]] * len(values),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORDS]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (LongType(), "-9223372036854775808", -(2**63)),
        (LongType(), "null", None),
        (ByteType(), "-128", -128),
        (DoubleType(), "1e400", float("inf")),
        (DoubleType(), '"-INF"', float("-inf")),
        (DoubleType(), "99999999999999999999999", 1e23),
        (DoubleType(), "-Infinity", float("-inf")),
        (FloatType(), "Inf", float("inf")),
        (FloatType(), "1e39", float("inf")),
        (StringType(), "5.10", "5.10"),
        (StringType(), "true", "true"),
        (StringType(), '{"x":[1,"y"]}', '{"x":[1,"y"]}'),
        (StringType(), r'"\u00e9\n\ud83d\ude00"', "é\n😀"),
        (DecimalType(5, 2), "1.005", Decimal("1.01")),
        (DecimalType(5, 2), "-1.005", Decimal("-1.01")),
        (DecimalType(5, 2), "999.994", Decimal("999.99")),
        (DecimalType(5, 2), '"1e2"', Decimal("100.00")),
        (DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
        (DecimalType(5, 2), "1e-300", Decimal("0.00")),
        (DateType(), '"2020-1-2"', date(2020, 1, 2)),
        (DateType(), '"2020-01-02T10:00:00Z"', date(2020, 1, 2)),
        (DateType(), '"2020"', date(2020, 1, 1)),
        (TimestampType(), '"2020-01-02T03:04:05+01:00"', datetime(2020, 1, 2, 2, 4, 5, tzinfo=UTC)),
        (TimestampType(), '"2020-01-02 3:4"', datetime(2020, 1, 2, 3, 4, tzinfo=UTC)),
        (TimestampType(), '"2020-01-02T03:04:05 UTC"', datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (TimestampType(), "1577934245", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (
            TimestampType(),
            '"1900-01-01T00:00:00.0000019-00:30"',
            datetime(1900, 1, 1, 0, 30, 0, 1, tzinfo=UTC),
        ),
        (TimestampNTZType(), '"2020-01-02"', datetime(2020, 1, 2)),  # noqa: DTZ001 - it has no zone
        (BinaryType(), '"AAEC"', b"\x00\x01\x02"),
        (BinaryType(), '""', b""),
        (MapType(StringType(), LongType()), '{"x":1,"y":null}', [("x", 1), ("y", None)]),
        (ArrayType(LongType()), "[1,null]", [1, None]),
        (struct(x=LongType(), y=StringType()), '{"x":1,"z":2}', {"x": 1, "y": None}),
    ],
)  # fmt: skip
def test_value_becomes_what_spark_makes_of_it(kind: DataType, text: str, expected: object) -> None:
    """Each type from each form of JSON that Spark accepts for it."""
    assert one(text, kind) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LongType(), "1.0"), (LongType(), '"5"'), (LongType(), "9223372036854775808"),
        (ByteType(), "128"), (ShortType(), "32768"), (IntegerType(), "2147483648"),
        (BooleanType(), "1"), (BooleanType(), '"true"'), (DoubleType(), '"1.5"'),
        (DoubleType(), "-nan"), (DoubleType(), "+Inf"), (DoubleType(), "Infin"),
        (LongType(), "NaN"),
        (DoubleType(), '"INF"'), (DoubleType(), "true"),
        (DecimalType(5, 2), "999.995"), (DecimalType(5, 2), "1000"), (DecimalType(5, 2), '"x"'),
        (DecimalType(5, 2), '" 1"'), (DecimalType(5, 2), "true"), (DecimalType(5, 2), "1e300"),
        (DecimalType(38, 0), "9" * 39), (ArrayType(DecimalType(5, 2)), "[1, 1000]"),
        (DateType(), "18262"), (DateType(), '"2020-13-01"'), (DateType(), '"x"'),
        (TimestampType(), '"2020-01-02T24:00:00Z"'), (TimestampType(), '"2020-01-02T03:04:60Z"'),
        (TimestampType(), "1.5"), (TimestampType(), '"soon"'), (TimestampType(), "9" * 18),
        (TimestampNTZType(), '"2020-01-02T03:04:05Z"'), (TimestampNTZType(), "1577934245"),
        (BinaryType(), '"AA"'), (BinaryType(), '"_-8="'), (BinaryType(), "5"),
        (MapType(StringType(), LongType()), "[]"),
        (MapType(StringType(), LongType()), '{"x":"q"}'),
        (ArrayType(LongType()), "5"), (ArrayType(LongType()), '[1,"x"]'),
        (struct(x=LongType()), "[]"), (struct(x=LongType()), '{"x":"q"}'),
        (StringType(), '"\n"'), (StringType(), '"\\ud800"'),
        (StringType(), b'"\xff"'), (StringType(), '"x",'), (StringType(), '"x"}{"a":"y"'),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_malformed(kind: DataType, text: bytes | str) -> None:
    """What Spark calls a corrupt record, and what is no JSON at all."""
    with pytest.raises(ValueError, match=r".*"):
        one(text, kind)


@pytest.mark.parametrize("kinds", [PLAIN, SLOW, PLAIN | SLOW])
def test_nothing_is_null_and_spaces_around_an_object_do_not_matter(
    kinds: dict[str, DataType],
) -> None:
    """No value, an empty one, spaces, no fields; pretty-printed ones; and what is no object."""
    pretty = json.dumps({"text": "a\nb", "big": 7}, indent=2).encode()
    values = [None, b"", b" \n", b"{}", pretty, b" {} \n", b'{"other":1}']
    schema = struct(**(kinds | {"text": StringType(), "big": LongType()}))
    rows, malformed = decode(values, schema)
    nothing = dict.fromkeys(schema.names)
    assert rows == [nothing] * 4 + [nothing | {"text": "a\nb", "big": 7}] + [nothing] * 2
    assert malformed == []
    for value in (
        b"null",
        b"[]",
        b"5",
        b'"x"',
        b"{",
        b"{}{}",
        b"{} x",
        b"\xef\xbb\xbf{}",
        b"}{",
        b'{"z":"\xff"}',
    ):
        assert decode([b"{}", value, b"{}"], schema) == ([nothing] * 3, [1])


@given(
    start=st.integers(0, 300),
    length=st.integers(0, 300),
    bad=st.sets(st.integers(0, 299), max_size=5),
)
def test_malformed_values_are_found_among_many(start: int, length: int, bad: set[int]) -> None:
    """Slices of an array, of any length: the malformed rows are null and named, no other one is."""
    values = [
        b"{}}" if row in bad else b'{"a":%d,"b":{"c":"%d"}}' % (row, row) for row in range(300)
    ]
    schema = struct(a=LongType(), b=struct(c=StringType()))
    arrow = to_arrow_schema(schema, timezone="UTC")
    found = JsonDecoder(arrow).decode(pa.array(values, pa.binary()).slice(start, length))
    stop = min(300, start + length)
    expected = [None if row in bad else row for row in range(min(start, 300), stop)]
    assert found.columns[0].to_pylist() == expected
    assert found.columns[1].to_pylist() == [
        None if row is None else {"c": str(row)} for row in expected
    ]
    assert [row + start for row, _ in found.malformed] == sorted(
        row for row in bad if start <= row < stop
    )


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b'{"a":1}', b'{"a":{"b":"}', b'{"}}'])))
def test_no_values_are_ever_read_as_one(values: list[bytes]) -> None:
    """Whatever stands beside it, a value is what it is by itself."""
    schema = struct(a=StringType())
    rows, malformed = decode(list(values), schema)
    alone = [decode([value], schema) for value in values]
    assert rows == [row for found, _ in alone for row in found]
    assert malformed == [row for row, (_, bad) in enumerate(alone) if bad]


# --- batches --------------------------------------------------------------------------------------


def test_names_of_records_keep_their_meaning_when_their_type_is_theirs() -> None:
    """`sequence bigint` is the record's, `timestamp string` is a field of the value."""
    schema = struct(
        price=DoubleType(),
        sequence=LongType(),
        timestamp=StringType(),
        topic=StringType(),
        partition=LongType(),
        value=BinaryType(),
        key=StringType(),
    )
    assert inner_fields(schema) == {"price", "timestamp", "partition", "key"}
    value = b'{"timestamp":"noon","price":1.5,"topic":"x","partition":9,"sequence":1,"key":"y"}'
    shape = JsonShape(schema)
    assert set(shape.needs) == {"sequence", "value"}
    batch = shape.batch(records([value, None]).select(shape.needs), ORIGIN)
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert [list(row.values()) for row in batch.to_pylist()] == [
        [1.5, 40, "noon", "sales/orders", 9, value, "y"],
        [None, 41, None, "sales/orders", None, None, None],
    ]


def test_batch_with_a_malformed_value_names_the_record_or_makes_it_null() -> None:
    """`fail`: topic, partition, sequence, column and what stood there. `null`: the row stays."""
    schema = struct(sequence=LongType(), a=LongType())
    batch = records([b'{"a":1}', b'{"a":"x"}', b'{"a":3}'])
    with pytest.raises(
        InvalidInputError,
        match=r'sales/orders\[3\]: the value of sequence 41 .* column a: "x" is no int64',
    ):
        JsonShape(schema).batch(batch, ORIGIN)
    found = JsonShape(schema, "null").batch(batch, ORIGIN)
    assert found.to_pydict() == {"sequence": [40, 41, 42], "a": [1, None, 3]}
    only_ours = JsonShape(struct(sequence=LongType())).batch(batch, ORIGIN)
    assert only_ours.to_pydict() == {"sequence": [40, 41, 42]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (VariantType(), "column a is variant, which decode=json does not read"),
        (NullType(), "column a is void"),
        (CharType(3), "column a is char"),
        (DayTimeIntervalType(), "column a is interval"),
        (MapType(LongType(), LongType()), "JSON has text for keys"),
        (struct(b=ArrayType(NullType())), r"column a.b\[\] is void"),
        (ArrayType(LongType(), containsNull=False), "in column a may not be null"),
        (StructType([StructField("b", LongType(), nullable=False)]), "in column a.b may not be nu"),
    ],
)
def test_type_that_is_not_read_is_refused_by_name(kind: DataType, message: str) -> None:
    """On the driver, before anything runs."""
    with pytest.raises(InvalidInputError, match=message):
        inner_fields(struct(a=kind))


def test_schema_that_cannot_be_is_refused() -> None:
    """A column that may not be null, and one that is there twice."""
    with pytest.raises(InvalidInputError, match="column a is NOT NULL"):
        inner_fields(StructType([StructField("a", LongType(), nullable=False)]))
    with pytest.raises(InvalidInputError, match="a column is there twice: a, a"):
        inner_fields(StructType([StructField("a", LongType()), StructField("a", StringType())]))


# --- the two ways, and Spark's --------------------------------------------------------------------

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_WHOLE = st.integers(-(2**40), 2**40)
_PLAIN_BEGIN = datetime(1900, 1, 1)  # noqa: DTZ001 - of times without a zone


def _times() -> st.SearchStrategy[str]:
    return st.builds(
        lambda at, zone: at.isoformat() + zone,
        st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 - a zone is added
        st.sampled_from(["", "Z", "+01:00", "-0530", "+14"]),
    )


def _json_of(kind: DataType) -> st.SearchStrategy[Any]:
    """JSON values for a type: mostly such as fit, some that do not, and null."""
    odd = st.sampled_from([True, 1.5, "x", "", 300, [], {}, [1], {"x": 1}])
    if isinstance(kind, StructType):
        fits: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {}, optional={field.name: _json_of(field.dataType) for field in kind.fields}
        )
    elif isinstance(kind, ArrayType):
        fits = st.lists(_json_of(kind.elementType), max_size=3)
    elif isinstance(kind, MapType):
        fits = st.dictionaries(_TEXTS, _json_of(kind.valueType), max_size=3)
    else:
        fits = _FITTING[kind.simpleString()]
    return st.integers(0, 30).flatmap(
        lambda dice: st.none() if dice == 0 else odd if dice == 1 else fits
    )


_FITTING: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    # 128 to 255 are negative bytes for Spark, and too large for us.
    "tinyint": st.integers(-140, 127),
    "smallint": st.integers(-40_000, 40_000),
    "int": st.integers(-(2**31) - 9, 2**31 + 9),
    "bigint": st.integers(-(2**63) - 9, 2**63 + 9),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False) | _WHOLE,
    "double": st.floats(allow_nan=False, allow_infinity=False) | _WHOLE,
    "decimal(9,2)": st.integers(-(10**9) - 9, 10**9 + 9).map(lambda n: n / 100)
    | st.decimals(-9999, 9999, places=3).map(str),
    "decimal(38,0)": st.integers(-(10**38) - 9, 10**38 + 9),
    "string": _TEXTS | st.booleans() | _WHOLE | st.lists(_WHOLE, max_size=2),
    "date": st.dates(date(1, 1, 1)).map(str) | _times(),
    "timestamp": _times() | st.dates(date(1900, 1, 1)).map(str) | st.integers(0, 2**32),
    "timestamp_ntz": st.datetimes(_PLAIN_BEGIN).map(datetime.isoformat) | _times(),
    "binary": st.binary(max_size=4).map(lambda data: b64encode(data).decode()),
}


def _values_of(schema: StructType) -> st.SearchStrategy[bytes]:
    fields = {field.name: _json_of(field.dataType) for field in schema.fields}
    objects = st.fixed_dictionaries({}, optional=fields | {"other": _TEXTS})
    return st.builds(
        lambda value, ascii_only: json.dumps(
            value, separators=(",", ":"), ensure_ascii=ascii_only
        ).encode(),
        objects,
        st.booleans(),
    )


FLAT = struct(**PLAIN)
DEEP = nested({name: PLAIN[name] for name in ("big", "money", "text", "day", "at", "clock")})


@settings(max_examples=60)
@given(st.lists(st.one_of(_values_of(FLAT), _values_of(DEEP)), max_size=8))
def test_many_at_once_are_what_they_are_one_by_one(values: list[bytes]) -> None:
    """The reader of pyarrow and our own agree about every value and every type."""
    for schema in (FLAT, DEEP):
        arrow = to_arrow_schema(schema, timezone="UTC")
        quick, exact = JsonDecoder(arrow), JsonDecoder(arrow)
        assert quick._is_fast
        exact._is_fast = False
        array = pa.array(values, pa.binary())
        (columns, malformed), (expected, also) = quick.decode(array), exact.decode(array)
        assert [row for row, _ in malformed] == [row for row, _ in also]
        for column, other in zip(columns, expected, strict=True):
            assert column.equals(other), (values, column, other)


@given(
    st.sampled_from(["NaN", "-NaN", "Inf", "-Inf", "Infinity", "-Infinity", "Infi", "nan", "+NaN"]),
    st.sampled_from(["double", "real", "big", "money", "text", "at", "other"]),
    st.sampled_from(["%s", " %s ", "[%s]", '{"x": %s}', '"%s"', "%s1", "1%s", "%s%s"]),
)
def test_numbers_by_name_are_the_same_both_ways(number: str, name: str, form: str) -> None:
    """Numbers that are not finite, where they may stand and where they may not."""
    value = b'{"%b":%b}' % (name.encode(), form.replace("%s", number).encode())
    quick, exact = (JsonDecoder(to_arrow_schema(FLAT, timezone="UTC")) for _ in range(2))
    exact._is_fast = False
    found, expected = (way.decode(pa.array([value], pa.binary())) for way in (quick, exact))
    many = quick.decode(pa.array([value] * 200, pa.binary()))
    assert [str(each) for each in found.columns] == [str(each) for each in expected.columns]
    assert str(many.columns[FLAT.names.index("real")][0]) == str(
        expected.columns[FLAT.names.index("real")][0]
    )
    assert bool(found.malformed) == bool(expected.malformed) == bool(many.malformed)


def test_spark_makes_the_same_of_the_same_values(spark: SparkSession) -> None:
    """Random objects over every type, against `from_json`: the rows, and which are malformed."""
    schema = struct(**PLAIN, **SLOW, deep=DEEP)
    values = _examples(_values_of(schema), 500)
    rows, malformed = decode(list(values), schema)
    texts = [(number, value.decode()) for number, value in enumerate(values)]
    whole = StructType([*schema.fields, StructField("corrupt", StringType())])
    how = {"columnNameOfCorruptRecord": "corrupt", "timeZone": "UTC"}
    frame = spark.createDataFrame(texts, "n int, v string").coalesce(1)
    theirs = frame.select(F.from_json("v", whole, how).alias("j")).select("j.*").toArrow()
    corrupt = theirs.column("corrupt").to_pylist()
    assert [row for row, text in enumerate(corrupt) if text is not None] == malformed
    assert 50 < len(malformed) < len(values) - 50
    for row, (found, expected) in enumerate(zip(rows, theirs.to_pylist(), strict=True)):
        if corrupt[row] is None:
            assert found == {name: expected[name] for name in schema.names}, values[row]


def _examples(strategy: st.SearchStrategy[bytes], count: int) -> list[bytes]:
    """So many values of a strategy, the same in every run."""
    found: list[bytes] = []

    @settings(max_examples=count, database=None, derandomize=True)
    @given(strategy)
    def collect(value: bytes) -> None:
        found.append(value)

    collect()
    return found


def test_decoded_columns_come_out_of_a_log(spark: SparkSession, tmp_path: Path) -> None:
    """Through Spark: columns of the record beside fields of the value, and the error."""
    path = tmp_path / "log"
    with headwater.open(path) as log:
        log.append_many([json.dumps({"n": n, "tags": ["a", str(n)]}).encode() for n in range(50)])
    reader = spark.read.format("headwater").option("decode", "json")
    frame = reader.schema("sequence bigint, n int, tags array<string>").load(str(path))
    assert sorted(tuple(row) for row in frame.collect()) == [
        (n, n, ["a", str(n)]) for n in range(50)
    ]
    with headwater.open(path) as log:
        log.append(b"no json")
    nulls = reader.option("decodeErrors", "null").schema("n int").load(str(path))
    assert nulls.where("n is null").count() == 1
    with pytest.raises(Exception, match="the value of sequence 50 cannot be decoded"):
        reader.option("decodeErrors", "fail").schema("n int").load(str(path)).collect()
