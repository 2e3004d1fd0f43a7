"""Malformed traces: each message has the place, the value, and the way out."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kvsim.errors import InputError
from kvsim.workload import PairLengths, ReadRules, TraceWorkload

TABLE = b"arrival_s,prompt_tokens,output_tokens\n"
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1,1\n"
MOON = b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
DROP = "on_bad_row='drop'"


def with_id(request_id: bytes) -> bytes:
    return b"request_id,arrival_s,prompt_tokens,output_tokens\n" + request_id + b",0,1,1\n"


CASES: dict[str, tuple[bytes, str, str, str]] = {
    # content, place after the file's name, what is wrong, way out
    "not a number": (
        AZURE + b"2023-11-16 18:17:04,5,abc",
        ":3",
        "column GeneratedTokens: 'abc' is not an integer >= 0",
        DROP,
    ),
    "negative": (TABLE + b"0,-4,1\n", ":2", "prompt_tokens: '-4' is not an integer >= 0", DROP),
    "half a token": (TABLE + b"0,1.5,1\n", ":2", "prompt_tokens: '1.5' is not an integer", DROP),
    "half a token in JSON": (
        b'{"arrival_s": 0, "prompt_tokens": 1.5, "output_tokens": 1}',
        ":1",
        "prompt_tokens: 1.5 is not an integer",
        DROP,
    ),
    "underscore": (TABLE + b"0,1_000,1\n", ":2", "'1_000' is not an integer", DROP),
    "not ASCII digits": (TABLE + "0,٣,1\n".encode(), ":2", "'٣' is not an integer", DROP),
    "boolean": (MOON + MOON.replace(b" 5}", b" true}"), ":2", "True is not an integer", DROP),
    "text in JSON": (MOON.replace(b" 5}", b' "five"}'), ":1", "'five' is not an integer", DROP),
    "too many tokens": (
        TABLE + b"0,1,100000001\n",
        ":2",
        "output_tokens: 100,000,001 is more than 100,000,000 tokens",
        DROP,
    ),
    "empty value": (TABLE + b"0,,1\n", ":2", "column prompt_tokens: the value is missing", DROP),
    "null": (
        MOON + b'{"timestamp": 1, "input_length": null, "output_length": 5}',
        ":2",
        "column input_length: the value is missing",
        DROP,
    ),
    "absent key": (
        MOON + b'\n{"timestamp": 1, "input_length": 5}',
        ":3",
        "column output_length: the value is missing",
        DROP,
    ),
    "negative arrival": (TABLE + b"-0.5,1,1\n", ":2", "'-0.5' is not a number >= 0", DROP),
    "infinite arrival": (TABLE + b"inf,1,1\n", ":2", "'inf' is not a number >= 0", DROP),
    "arrival in 300 years": (TABLE + b"1e10,1,1\n", ":2", "not a time from 0 to 292 years", DROP),
    "huge exponent": (TABLE + b"1e9999,1,1\n", ":2", "not a time from 0 to 292 years", DROP),
    "an exponent no number has": (
        MOON + MOON.replace(b" 0,", b" 1e99999999999999999999,"),
        ":2",
        "column timestamp: '1e99999999999999999999' is not a number >= 0",
        DROP,
    ),
    "the same in the first row": (
        MOON.replace(b" 0,", b" -1e-99999999999999999999,"),
        ":1",
        "column timestamp: '-1e-99999999999999999999' is not a number >= 0",
        DROP,
    ),
    "tokens with a huge exponent": (
        MOON.replace(b" 5,", b" 1e999999999,"),
        ":1",
        "column input_length: 1E+999999999 is not an integer >= 0",
        DROP,
    ),
    "tokens with a tiny exponent": (
        MOON.replace(b" 5,", b" 1e-999999999,"),
        ":1",
        "column input_length: 1E-999999999 is not an integer >= 0",
        DROP,
    ),
    "priority with a huge exponent": (
        b'{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "priority": 1e999999999}',
        ":1",
        "column priority: 1E+999999999 is not an integer from -2147483648",
        DROP,
    ),
    "an arrival with no room left in 64 bits": (
        MOON + MOON.replace(b" 0,", b" 9223372036854,"),
        ":2",
        "column timestamp: 9223372036854 is not a time from 0 to 292 years",
        DROP,
    ),
    "NaN in JSON": (
        MOON + MOON.replace(b" 0,", b" NaN,"),
        ":2",
        "NaN is not a JSON number",
        DROP,
    ),
    "no time": (
        AZURE + b"16.11.2023 18:17,1,1\n",
        ":3",
        "TIMESTAMP: '16.11.2023 18:17' is not a time like 2023-11-16 18:17:03.9799600",
        DROP,
    ),
    "no day": (AZURE + b"2023-02-30 00:00:00,1,1\n", ":3", "is not a date of the calendar", DROP),
    "no time of day": (AZURE + b"2023-02-03 24:00:00,1,1\n", ":3", "is not a time of day", DROP),
    "offset of a day": (
        AZURE + b"2023-02-03 10:00:00+24:00,1,1\n",
        ":3",
        "'2023-02-03 10:00:00+24:00' is not a time with an offset of at most 23:59",
        DROP,
    ),
    "offset of sixty minutes": (
        AZURE + b"2023-02-03 10:00:00-01:60,1,1\n",
        ":3",
        "is not a time with an offset of at most 23:59",
        DROP,
    ),
    "date too late": (AZURE + b"2400-02-03 10:00:00,1,1\n", ":3", "1970-01-02 to 2260", DROP),
    "too few columns": (TABLE + b"0,1\n", ":2", "2 values, the header names 3", DROP),
    "too many columns": (TABLE + b"0,1,2,3\n", ":2", "4 values, the header names 3", DROP),
    "a name twice": (with_id(b"a") + b"a,1,1,1\n", ":3", "request_id 'a' appears twice", DROP),
    "a name that prints badly": (with_id(b"a\x1b[2J"), ":2", r"'a\x1b[2J' is not printable", DROP),
    "a name too long": (with_id(b"a" * 257), ":2", "at most 256 characters", DROP),
    "limit below the output": (
        b"arrival_s,prompt_tokens,output_tokens,max_tokens\n0,1,9,8\n",
        ":2",
        "column max_tokens: 8 is less than the output, 9",
        DROP,
    ),
    "priority": (
        b"arrival_s,prompt_tokens,output_tokens,priority\n0,1,9,high\n",
        ":2",
        "column priority: 'high' is not an integer from -2147483648 to 2147483647",
        DROP,
    ),
    "hash ids no list": (
        MOON + MOON.replace(b"}", b', "hash_ids": {"a": 1}}'),
        ":2",
        "column hash_ids: {'a': 1} is not a list of block ids",
        DROP,
    ),
    "delay without timestamp": (
        MOON + b'{"delay": 5, "input_length": 5, "output_length": 5}',
        ":2",
        "column timestamp: a row with only a delay has no arrival",
        DROP,
    ),
    "broken JSON": (MOON + b'{"timestamp": 5,\n', ":2", "not valid JSON", DROP),
    "key twice": (MOON + b'{"timestamp": 1, "timestamp": 2}', ":2", "a key appears twice", DROP),
    "key twice in other letters": (
        MOON + b'{"timestamp": 1, "Timestamp": 2}',
        ":2",
        "a key appears twice",
        DROP,
    ),
    "list in a line": (MOON + b"[1, 2]\n", ":2", "a JSON list, not an object", DROP),
    "deep JSON": (MOON + b"[" * 100_000, ":2", "nested too deeply", DROP),
    "long integer": (MOON.replace(b" 5}", b" " + b"9" * 5000 + b"}"), ":1", "not valid JSON", ""),
    "JSON array": (b"[\n{}\n]", ":1", "a JSON array, not JSON lines", "one object per line"),
    "pretty-printed JSON": (b'{\n "timestamp": 1\n}', ":1", "not valid JSON", "object per line"),
    "unclosed quote": (TABLE + b'"0,1,1\n0,1,1\n', ":3", "not valid CSV", "quotes"),
    "not UTF-8": (TABLE + b"0,1,\xff\n", ":2", "byte b'\\xff' at column 5 is not UTF-8", "UTF-8"),
    "UTF-16": ("arrival_s".encode("utf-16"), "", "is UTF-16 text", "Save it as UTF-8"),
    "no header": (b"0.5,100,20\n", "", "no known format has the columns 0.5, 100, 20", "arrival_s"),
    "semicolons": (b"arrival_s;prompt_tokens\n", ":1", "distinct columns, by commas", "arrival_s,"),
    "column twice": (b"arrival_s,arrival_s,a\n", ":1", "distinct columns", "arrival_s,"),
    "column twice in other letters": (
        b"arrival_s,prompt_tokens,output_tokens,Prompt_Tokens\n0,1,1,9\n",
        ":1",
        "distinct columns",
        "arrival_s,",
    ),
    "column that prints badly": (b"a\x1b[2J,b\n", "", r"the columns 'a\x1b[2J', b", "arrival_s"),
    "unknown columns": (b"when,in,out\n", "", "the columns when, in, out", "arrival_s"),
    "lengths only": (b"prompt_len,output_len\n1,1\n", "", "no arrivals", "generated arrivals"),
    "another's format": (
        b"Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,1,1\n",
        "",
        "looks like a BurstGPT file, which is not read yet",
        "arrival_s, prompt_tokens and output_tokens",
    ),
    "whole sessions": (
        b'{"id": "a", "block_size": 64, "requests": []}',
        "",
        "looks like a session (WEKA) file, which is not read yet (column requests)",
        "one request a line with jq -c",
    ),
    "too few hash ids": (
        MOON.replace(b" 5,", b" 513,").replace(b"}", b', "hash_ids": [1]}'),
        ":1",
        "column hash_ids: 1 ids, but a prompt of 513 tokens has 2 chunks of 512",
        DROP,
    ),
    "too many hash ids": (
        MOON.replace(b"}", b', "hash_ids": [1, 2]}'),
        ":1",
        "column hash_ids: 2 ids, but a prompt of 5 tokens has 1 chunks of 512",
        DROP,
    ),
    "a negative hash id": (
        MOON.replace(b"}", b', "hash_ids": [-1]}'),
        ":1",
        "column hash_ids: -1 is not a block id: text, or an integer from 0 to 2^64 - 1",
        DROP,
    ),
    "a hash id of 65 bits": (
        MOON.replace(b"}", b', "hash_ids": [18446744073709551616]}'),
        ":1",
        "column hash_ids: 18446744073709551616 is not a block id",
        DROP,
    ),
    "a boolean hash id": (
        MOON.replace(b"}", b', "hash_ids": [true]}'),
        ":1",
        "column hash_ids: True is not a block id",
        DROP,
    ),
    "a fractional hash id": (
        MOON.replace(b"}", b', "hash_ids": [1.5]}'),
        ":1",
        "column hash_ids: 1.5 is not a block id",
        DROP,
    ),
    "a chunk size that changes": (
        MOON.replace(b"}", b', "hash_ids": [1], "block_size": 16}')
        + MOON.replace(b"}", b', "hash_ids": [1], "block_size": 32}'),
        ":2",
        "column block_size: 32 differs from 16, which rows above have",
        DROP,
    ),
    "no chunk size": (
        MOON.replace(b"}", b', "hash_ids": [1], "block_size": 0}'),
        ":1",
        "column block_size: 0 is not a number of tokens from 1 to 100,000,000",
        DROP,
    ),
    "ids for a partial chunk of a session": (
        b'{"id": "a", "t": 0, "in": 65, "out": 1, "hash_ids": [1, 2]}',
        ":1",
        "column hash_ids: 2 ids, but a prompt of 65 tokens has 1 chunks of 64",
        DROP,
    ),
    "a session's ids too large to tell sessions apart": (
        b'{"id": "a", "t": 0, "in": 64, "out": 1, "hash_ids": [4294967296]}',
        ":1",
        "[4294967296] is not a list of ids from 0 to 4294967295",
        DROP,
    ),
    "content chunks no list": (
        MOON.replace(b"}", b', "hash_ids": {"sys_prompt": 1}}'),
        ":1",
        "column hash_ids: 1 is not a list of block ids",
        DROP,
    ),
    "empty": (b"", "", "the file is empty", "rows"),
    "blank": (b"\n \n\n", "", "only blank lines", "rows"),
    "header only": (TABLE, "", "no usable row among 0", "right file"),
    "nothing usable": (
        TABLE + b"0,1,0\n\n",
        "",
        "no usable row among 2 (1 blank, 1 zero_output)",
        "right file",
    ),
    "Git-LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        "",
        "is a Git-LFS pointer, not the data",
        "git lfs pull",
    ),
    "cut gzip": (gzip.compress(TABLE + b"0,1,1\n" * 99)[:-9], "", "cannot be read to its end", ""),
    "gzip twice": (gzip.compress(gzip.compress(TABLE)), "", "is compressed twice", "gunzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 20, "", "is compressed with zstd", "zstd -d"),
    "zip": (b"PK\x03\x04" + b"x" * 20, "", "is a zip archive", "Unpack"),
    "broken Parquet": (b"PAR1" + b"x" * 40, "", "is not a readable Parquet file", "Write it again"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_trace_is_refused_with_place_value_and_way_out(
    tmp_path: Path, case: str
) -> None:
    content, place, problem, fix = CASES[case]
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        TraceWorkload(path)
    assert str(error.value).startswith(f"{path}{place}: ")
    assert problem in str(error.value)
    assert error.value.fix
    assert fix in error.value.fix


def test_numbers_out_of_range_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        MOON.replace(b" 0,", b" 1e99999999999999999999,"),
        MOON,
        MOON.replace(b" 5,", b" 1e999999999,"),
        MOON.replace(b"}", b', "text": 1e99999999999999999999}'),
    ]
    path.write_bytes(b"".join(rows))
    counts = TraceWorkload(path, rules=ReadRules(on_bad_row="drop")).counts
    assert (counts.read, counts.kept, counts.dropped) == (4, 2, {"bad_value": 2})


def test_a_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [1.0, 2.5]}
    parquet.write_table(pa.table(table), path)
    with pytest.raises(InputError, match=r"rows\.parquet: row 2: column output_tokens: 2\.5 is"):
        TraceWorkload(path)


def test_parquet_inside_gzip_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"arrival_s": [0.0]}), buffer)
    path = tmp_path / "rows.parquet.gz"
    path.write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(InputError, match="is Parquet inside gzip"):
        TraceWorkload(path)


def test_a_column_the_named_format_needs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"timestamp,prompt\n")
    with pytest.raises(InputError, match="has no column ContextTokens, only timestamp, prompt"):
        PairLengths(path, format="azure")
    with pytest.raises(InputError, match=r"'csv' is no trace format\. Use one of: auto, azure"):
        TraceWorkload(path, format="csv")


@pytest.mark.parametrize("name", ["missing.csv", ""])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"no such file|is not a file"):
        TraceWorkload(tmp_path / name)


def test_a_gzip_bomb_stops_at_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(TABLE + b"0,1,1\n" * 100_000))
    with pytest.raises(InputError, match="more than 100,000 bytes after decompression"):
        TraceWorkload(path, rules=ReadRules(max_bytes=100_000))


def test_a_line_without_end_stops_at_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TABLE + b"0," + b"1" * 2**20)
    with pytest.raises(InputError, match=r":2: the line is longer than 1,048,576 bytes"):
        TraceWorkload(path)


def test_more_rows_than_the_cap_are_refused_blank_ones_included(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TABLE + b"0,1,1\n\n\n0,1,1\n")
    assert TraceWorkload(path, rules=ReadRules(max_rows=4)).counts.read == 4
    with pytest.raises(InputError, match=r":5: more than 3 rows\. Set a limit"):
        TraceWorkload(path, rules=ReadRules(max_rows=3))


def test_blank_lines_before_the_header_count_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\n" * 3_000 + TABLE + b"0,1,1\n")
    assert TraceWorkload(path).counts.dropped == {"blank": 3_000}
    with pytest.raises(InputError, match=r":1001: more than 1,000 rows"):
        TraceWorkload(path, rules=ReadRules(max_rows=1_000))


def test_a_long_value_is_shortened_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TABLE + b"0," + b"x" * 100_000 + b",1\n")
    with pytest.raises(InputError) as error:
        TraceWorkload(path)
    assert len(str(error.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_scale": 0}, "rate_scale: must be from 1e-06 to 1e+06, got 0"),
        ({"rate_scale": float("nan")}, "rate_scale: must be from 1e-06 to 1e+06, got nan"),
        ({"limit": 0}, "limit: must be an integer from 1 to"),
        ({"limit": True}, "limit: must be an integer from 1 to"),
        ({"start_at": -1}, "start_at: must be an integer from 0 to"),
        ({"smear_s": -1}, "smear_s: must be from 0 to 1e+06 s, got -1"),
        ({"seed": -1}, "seed: must be an integer from 0 to"),
    ],
)
def test_an_option_out_of_range_is_named(
    tmp_path: Path, options: dict[str, float], message: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TABLE + b"0,1,1\n")
    with pytest.raises(InputError) as error:
        TraceWorkload(path, **options)  # type: ignore[arg-type]
    assert str(error.value).startswith(message)


def test_a_rate_scale_that_stretches_the_trace_past_64_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TABLE + b"1000000,1,1\n")
    with pytest.raises(InputError, match=r"after 1e\+12 s, more than 292 years"):
        TraceWorkload(path, rate_scale=1e-6)


def test_on_bad_row_takes_two_words_only() -> None:
    with pytest.raises(InputError, match="on_bad_row: must be 'error' or 'drop', got 'skip'"):
        ReadRules(on_bad_row="skip")  # type: ignore[arg-type]


def test_a_deep_value_in_a_first_line_that_is_an_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"a": 1})[:-1] + ', "b": ' + "[" * 100_000)
    with pytest.raises(InputError, match=r":1: the JSON value is nested too deeply"):
        TraceWorkload(path)


def test_blank_lines_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "blank.csv.gz"
    header = b"arrival_s,prompt_tokens,output_tokens\n"
    path.write_bytes(gzip.compress(header + b"\n" * 20_000))
    with pytest.raises(InputError, match=r"blank.csv.gz:10002: more than 10,000 blank lines"):
        TraceWorkload(path)
