"""Every trace format and its quirks, on small files written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kvsim.core.request import Request
from kvsim.workload import PairLengths, ReadRules, TraceWorkload
from kvsim.workload.columns import TraceReader

DATA = Path(__file__).parent / "data"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def rows(path: Path, **options: object) -> list[tuple[int, int, int]]:
    workload = TraceWorkload(path, **options)  # type: ignore[arg-type]
    return [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in workload]


def test_azure_2023_keeps_seven_fraction_digits_across_midnight_and_its_last_line() -> None:
    assert rows(DATA / "azure_2023.csv") == [
        (0, 100, 10),
        (200, 200, 20),
        (1_500_000_100, 300, 30),
    ]


def test_azure_2024_reads_offsets_and_seconds_without_a_fraction() -> None:
    assert rows(DATA / "azure_2024.csv") == [
        (0, 100, 10),
        (249_999_000, 200, 20),
        (999_999_000, 300, 30),
    ]


def test_azure_reads_every_offset_the_standard_has(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00+23:59,1,1\n2024-05-10 00:00:00-23:59,1,1\n",
    )
    assert [row[0] for row in rows(path)] == [0, 2 * (23 * 3600 + 59 * 60) * 10**9]


def test_azure_2025_reads_tokens_by_name_behind_the_extra_images_column() -> None:
    assert rows(DATA / "azure_lmm_2025.csv") == [(0, 100, 10), (731_000_000, 200, 20)]


def test_a_common_start_keeps_the_clocks_of_two_azure_files_together() -> None:
    midnight = 1_715_299_200 * 10**9  # 2024-05-10 00:00:00 UTC
    assert [row[0] for row in rows(DATA / "azure_2024.csv", start_at=midnight)] == [
        1_000,
        250_000_000,
        1_000_000_000,
    ]


def test_rows_before_the_start_are_dropped_and_counted() -> None:
    start = 1_715_299_200 * 10**9 + 1_001
    workload = TraceWorkload(DATA / "azure_2024.csv", start_at=start)
    assert [r.request_id for r in workload] == ["r0", "r1"]
    assert workload.counts.dropped == {"before_start": 1}
    assert workload.counts.read == 3


def test_mooncake_milliseconds_may_have_fractions_and_ties_keep_file_order() -> None:
    assert rows(DATA / "mooncake.jsonl") == [
        (0, 1000, 10),
        (0, 600, 20),
        (2_997_500_000, 513, 1),
        (6_000_000_000, 5, 7),
    ]


def test_smearing_spreads_an_instant_in_file_order_and_never_past_the_next(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {tick}, "input_length": {rank + 1}, "output_length": 1}}\n'
        for tick in (0, 1000, 5000)
        for rank in range(200)
    ]
    path = write(tmp_path, "".join(lines))
    smeared = rows(path, smear_s=3.0, seed=7)
    assert [row[1] for row in smeared] == [*range(1, 201)] * 3
    times = [row[0] / 1e9 for row in smeared]
    assert times == sorted(times)
    assert max(times[:200]) < 1.0 <= min(times[200:400])
    assert 3.5 < max(times[200:400]) < 4.0
    assert 7.5 < max(times[400:]) < 8.0
    assert sum(times[:200]) / 200 == pytest.approx(0.5, abs=0.08)
    assert rows(path, smear_s=3.0, seed=7) == smeared != rows(path, smear_s=3.0, seed=8)


def test_a_plain_table_keeps_its_clock_and_its_optional_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "priority,output_tokens,request_id,arrival_s,max_tokens,prompt_tokens\n"
        "-1,20,first,0.5,20,100\n,30,second,1e0,,200\n",
    )
    assert list(TraceWorkload(path)) == [
        Request("first", 500_000_000, 100, 20, 20, -1),
        Request("second", 1_000_000_000, 200, 30, None, 0),
    ]


@pytest.mark.parametrize("name", ["plain.jsonl", "plain.jsonl.gz"])
def test_a_plain_table_as_json_lines(tmp_path: Path, name: str) -> None:
    text = (
        b'{"arrival_s": 0.000000001, "prompt_tokens": 3, "output_tokens": 4.0, "request_id": 17}\n'
        b'{"arrival_s": 2, "prompt_tokens": 5, "output_tokens": 6, "request_id": "x"}\n'
    )
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert list(TraceWorkload(path)) == [Request("17", 1, 3, 4), Request("x", 2 * 10**9, 5, 6)]


def test_json_rows_have_optional_columns_each_for_itself_in_any_letters(tmp_path: Path) -> None:
    row = '"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 4'
    path = write(
        tmp_path,
        f"{{{row}}}\n"
        f'{{{row}, "request_id": "mine", "max_tokens": 7, "priority": 3}}\n'
        f'{{{row}, "Max_Tokens": null, "PRIORITY": -1}}\n'
        f'{{{row.replace("arrival_s", "Arrival_S")}, "Request_ID": "r0x"}}\n',
    )
    assert list(TraceWorkload(path)) == [
        Request("r0", 0, 3, 4),
        Request("mine", 0, 3, 4, 7, 3),
        Request("r2", 0, 3, 4, None, -1),
        Request("r0x", 0, 3, 4),
    ]


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["", '"r0"', ""], ["r0", "r1"]),
        (['"r1"', "", '"r2"'], ["r1", "r2"]),
        (["", "", '"r3"', ""], ["r0", "r1", "r3"]),
        (["", '"r1"', '"r00"', '"r3"'], ["r0", "r1", "r00", "r3"]),
        (['"r1"', '"r0"'], ["r1", "r0"]),
    ],
)
def test_a_row_without_a_name_never_shares_one(
    tmp_path: Path, names: list[str], kept: list[str]
) -> None:
    """Such a row is called by its place among the usable rows; who comes second is dropped."""
    row = '"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 4'
    lines = [f'{{{row}, "request_id": {name}}}\n' if name else f"{{{row}}}\n" for name in names]
    workload = TraceWorkload(write(tmp_path, "".join(lines)), rules=ReadRules(on_bad_row="drop"))
    assert [r.request_id for r in workload] == kept
    lost = len(names) - len(kept)
    assert workload.counts.dropped == ({"duplicate_id": lost} if lost else {})


def test_a_table_without_optional_columns_holds_nothing_for_them(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,2\n")
    (chunk,) = TraceReader(path, "auto", ReadRules()).chunks()
    assert chunk.extras is None


def test_arrivals_near_the_end_of_64_bits_can_still_be_smeared(tmp_path: Path) -> None:
    """292 years less the largest `smear_s`, a million seconds."""
    last_ms = (2**63 - 1) // 10**6 - 10**9
    path = write(
        tmp_path, f'{{"timestamp": {last_ms}, "input_length": 1, "output_length": 1}}\n' * 3
    )
    arrivals = [r.arrival_ns for r in TraceWorkload(path, smear_s=1e6)]
    assert 0 <= min(arrivals) <= max(arrivals) < 10**15


def test_a_plain_table_as_parquet_under_any_name(tmp_path: Path) -> None:
    table = {
        "arrival_s": pa.array([0.1, 0.3]),
        "prompt_tokens": pa.array([3, 5], pa.int32()),
        "output_tokens": pa.array([4, 6], pa.int64()),
        "max_tokens": pa.array([None, 8]),
        "text": pa.array(["not", "read"]),
    }
    path = tmp_path / "rows.bin"
    parquet.write_table(pa.table(table), path)
    assert list(TraceWorkload(path)) == [
        Request("r0", 100_000_000, 3, 4, None),
        Request("r1", 300_000_000, 5, 6, 8),
    ]


def test_vidur_traces_are_seconds_from_the_start(tmp_path: Path) -> None:
    path = write(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,1,2\n1.5,3,4\n")
    assert rows(path) == [(250_000_000, 1, 2), (1_500_000_000, 3, 4)]


@pytest.mark.parametrize(
    "header",
    [
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
        "prompt_tokens,output_tokens,x,y",
        "prompt_len,output_len,x,y",
    ],
)
def test_length_pairs_are_read_under_each_of_their_names(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, f"{header}\n7,8,15,0.8\n0,3,3,0\n9,1,10,9\n")
    pairs = PairLengths(path)
    assert pairs.prompt_tokens.tolist() == [7, 9]
    assert pairs.output_tokens.tolist() == [8, 1]
    assert pairs.counts.dropped == {"zero_prompt": 1}


def test_lengths_may_come_from_a_trace_with_arrivals() -> None:
    assert PairLengths(DATA / "azure_2023.csv").prompt_tokens.tolist() == [100, 200, 300]


def test_byte_order_mark_blank_lines_and_trailing_commas_are_survived(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeff\n\r\narrival_s , prompt_tokens,output_tokens,\r\n"
        "0,1,2,\r\n\r\n  \r\n1,3, 4.00 ,,\r\n",
    )
    workload = TraceWorkload(path)
    assert [(r.prompt_tokens, r.output_tokens) for r in workload] == [(1, 2), (3, 4)]
    assert workload.counts.read == 6
    assert workload.counts.dropped == {"blank": 4}


def test_quoted_values_are_read_as_csv_says(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'request_id,arrival_s,prompt_tokens,output_tokens\n"a, ""b""",0,"1",2\n',
    )
    assert next(iter(TraceWorkload(path))) == Request('a, "b"', 0, 1, 2)


def test_a_row_whose_name_is_left_empty_is_called_by_its_place(tmp_path: Path) -> None:
    head = "arrival_s,prompt_tokens,output_tokens,request_id\n"
    path = write(tmp_path, f"{head}0,1,2,a\n1,3,4,\n2,5,6,b\n")
    assert [r.request_id for r in TraceWorkload(path)] == ["a", "r1", "b"]
    columns = {name: [1, 2] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    table = pa.table({**columns, "request_id": ["a", None]})
    parquet.write_table(table, tmp_path / "trace.parquet")
    assert [r.request_id for r in TraceWorkload(tmp_path / "trace.parquet")] == ["a", "r1"]
    line = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "request_id": null}\n'
    assert [r.request_id for r in TraceWorkload(write(tmp_path, line, "t.jsonl"))] == ["r0"]


def test_rows_without_prompt_or_output_are_dropped_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,0,0\n0,5,0\n1,5,5\n2,0,5\n")
    workload = TraceWorkload(path)
    assert [r.arrival_ns for r in workload] == [10**9]
    assert workload.counts.dropped == {"zero_output": 1, "zero_prompt": 2}
    assert (workload.counts.read, workload.counts.kept) == (4, 1)


def test_rows_out_of_order_are_sorted_stably_counted_and_named_by_place(tmp_path: Path) -> None:
    path = write(
        tmp_path, "arrival_s,prompt_tokens,output_tokens\n2,1,1\n1,2,1\n3,3,1\n1,4,1\n3,5,1\n"
    )
    workload = TraceWorkload(path)
    assert [(r.request_id, r.prompt_tokens) for r in workload] == [
        ("r1", 2),
        ("r3", 4),
        ("r0", 1),
        ("r2", 3),
        ("r4", 5),
    ]
    assert workload.counts.reordered == 2


def test_sorting_keeps_ids_with_their_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path, "request_id,arrival_s,prompt_tokens,output_tokens\nlate,2,1,1\nearly,1,2,1\n"
    )
    assert [(r.request_id, r.prompt_tokens) for r in TraceWorkload(path)] == [
        ("early", 2),
        ("late", 1),
    ]


def test_rate_scale_divides_arrivals_in_exact_integers(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "arrival_s,prompt_tokens,output_tokens\n0.000000005,1,1\n9000000000.000000001,1,1\n",
    )
    assert [row[0] for row in rows(path, rate_scale=3)] == [1, 3_000_000_000_000_000_000]
    assert [row[0] for row in rows(path, rate_scale=2.5)] == [2, 3_600_000_000_000_000_000]


def test_limit_keeps_the_first_usable_rows_and_stops_parsing_there(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,0\n1,2,2\n2,3,3\nbroken\n")
    workload = TraceWorkload(path, limit=2)
    assert [r.prompt_tokens for r in workload] == [2, 3]
    assert (workload.counts.read, workload.counts.kept) == (3, 2)


def test_bad_rows_can_be_dropped_by_reason(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "request_id,arrival_s,prompt_tokens,output_tokens\n"
        "a,0,1,2\nb,0,x,2\nc,0,1\na,0,1,2\nd,,1,2\ne,1,1,2\n",
    )
    workload = TraceWorkload(path, rules=ReadRules(on_bad_row="drop"))
    assert [r.request_id for r in workload] == ["a", "e"]
    assert workload.counts.dropped == {
        "bad_value": 1,
        "duplicate_id": 1,
        "missing_value": 1,
        "wrong_columns": 1,
    }


def test_a_file_too_long_to_hold_is_read_again_with_the_same_rows(tmp_path: Path) -> None:
    """More rows than one chunk of 65,536, once held in memory, once streamed, once unsorted."""
    lines = [f"{i},{i % 90 + 1},{i % 7}\n" for i in range(70_000)]
    header = "arrival_s,prompt_tokens,output_tokens\n"
    path = write(tmp_path, header + "".join(lines))
    held, streamed = TraceWorkload(path), TraceWorkload(path, keep_rows=100)
    assert list(held) == list(streamed) == list(streamed)
    assert held.digest == streamed.digest
    assert held.counts == streamed.counts
    assert held.counts.kept == 60_000
    unsorted = write(tmp_path, header + "".join(lines[1:] + lines[:1] + ["0,5,5\n"]))
    late = TraceWorkload(unsorted, keep_rows=100)
    assert late.counts.reordered == 1
    assert next(iter(late)) == Request("r60000", 0, 5, 5)
    assert [r.arrival_ns for r in late][1:] == [r.arrival_ns for r in held]


def test_a_file_that_changes_between_two_readings_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n2,1,1\n")
    workload = TraceWorkload(path, keep_rows=1)
    write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n2,1,2\n")
    with pytest.raises(ValueError, match="changed while it was read"):
        list(workload)


def test_gzip_is_recognised_by_content_and_leaves_digest_and_source_alone(tmp_path: Path) -> None:
    plain = DATA / "azure_2023.csv"
    packed = tmp_path / "azure_2023.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    hidden = write(tmp_path, "", "hidden.csv")
    hidden.write_bytes(packed.read_bytes())
    first, second = TraceWorkload(plain), TraceWorkload(packed)
    assert list(first) == list(second) == list(TraceWorkload(hidden))
    assert first.digest == second.digest
    assert first.source == second.source == "azure_2023.csv"


def test_the_digest_covers_content_and_everything_done_to_it(tmp_path: Path) -> None:
    path = DATA / "mooncake.jsonl"
    other = write(tmp_path, path.read_text().replace("600,", "601,"))
    digests = [
        TraceWorkload(path).digest,
        TraceWorkload(other).digest,
        TraceWorkload(path, rate_scale=2).digest,
        TraceWorkload(path, limit=2).digest,
        TraceWorkload(path, start_at=1).digest,
        TraceWorkload(path, smear_s=1).digest,
        TraceWorkload(path, smear_s=1, seed=1).digest,
    ]
    assert len(set(digests)) == len(digests)
    assert TraceWorkload(path, seed=5).digest == digests[0]
    assert TraceWorkload(path, format="mooncake").digest == digests[0]
    assert all(len(digest) == 64 for digest in digests)
