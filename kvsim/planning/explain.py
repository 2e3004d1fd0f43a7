"""Every figure of a fit with its formula and the numbers in it."""

from __future__ import annotations

from dataclasses import replace

from kvsim.catalog import Term
from kvsim.catalog.compressed_bytes import compresses, kept
from kvsim.planning.document import DEFINITIONS, request_bytes
from kvsim.planning.fit import Fit
from kvsim.planning.pool_groups import image_tokens
from kvsim.planning.start import printed_gib


def explained(found: Fit) -> list[str]:
    """A line for each figure of the table, in its order."""
    lines = [_term(found, term) for term in found.budget.terms() if term.name != "kv_pool"]
    lines += [_pool(found), *_kept(found), _request(found), _naive(found), _margin(found)]
    lines += _image(found)
    lines += [_blocks(found), _tokens(found), _concurrency(found), _longest(found)]
    count = found.settings.given.data_parallel_size
    if count > 1:
        start = found.start
        lines += [
            f"all_tokens = {count} * {start.kv_tokens:,} = {count * start.kv_tokens:,}",
            f"all_concurrency = {count} * {start.max_concurrency:.2f} ="
            f" {count * start.max_concurrency:.2f}; a request stays in one replica",
        ]
    return lines


def refusal_sentence(found: Fit) -> str | None:
    """What the server's refusal would say, in its own figures; None for one that starts."""
    refusal = found.start.refusal
    if refusal is None:
        return None
    length = found.settings.max_model_len
    if refusal.rule == "max_len_gt_kv_tokens":
        return (
            f"the server refuses: max_model_len is {length:,} tokens, its cache stores"
            f" {found.start.kv_tokens:,}"
        )
    needed, available = map(printed_gib, (refusal.needed_bytes, refusal.available_bytes))
    return (
        f"the server refuses: one request of {length:,} tokens needs {needed} GiB of KV,"
        f" {available} GiB are available; the longest that fits has"
        f" {refusal.longest_request_tokens:,} tokens"
    )


def room_sentence(found: Fit) -> str | None:
    """What may run out of memory after the pool is sized; None where enough is left."""
    if found.on_top_bytes <= found.spare_bytes:
        return None
    needed, left = map(printed_gib, (found.on_top_bytes, found.spare_bytes))
    return (
        f"outside the budget {left} GiB are left, CUDA graphs and communication may take {needed}:"
        " a start may run out of memory; lower gpu_memory_utilization"
    )


def _term(found: Fit, term: Term) -> str:
    flags, model = found.settings, found.model
    given = {
        "activation_peak": f"max_num_batched_tokens {flags.max_num_batched_tokens:,}, max_num_seqs"
        f" {flags.max_num_seqs:,}, hidden {model.hidden:,}, intermediate {model.intermediate:,},"
        f" vocab {model.vocab:,}, tp {flags.tensor_parallel_size}",
        "budget": f"{printed_gib(found.budget.total.bytes)} GiB * {flags.gpu_memory_utilization:g}",
    }
    numbers = f" [{given[term.name]}]" if term.name in given else ""
    return f"{term.name} = {printed_gib(term.bytes)} GiB: {term.formula}{numbers}. {term.source}"


def _pool(found: Fit) -> str:
    budget = found.budget
    spent = [budget.weights, *budget.further, budget.activation_peak, budget.non_torch]
    spent += [budget.cuda_graphs] if found.release.graphs_in_budget else []
    parts = " - ".join(printed_gib(term.bytes) for term in (budget.budget, *spent))
    return f"kv_pool = {parts} = {printed_gib(budget.kv_pool.bytes)} GiB"


def _per_request(found: Fit) -> int:
    flags = found.settings
    return found.layout.blocks_per_request(flags.max_model_len, max_in_flight=flags.max_in_flight)


def _block(found: Fit) -> str:
    layout = found.layout
    if layout.groups.pages is not None:
        return f"{layout.block_bytes:,} B, pages of {_page_sums(found)}"
    dcp = found.settings.given.decode_context_parallel_size
    dealt = f", dealt to {dcp} GPUs" if dcp > 1 else ""
    return (
        f"{layout.block_bytes:,} B, {layout.block_tokens} tokens of {layout.groups.layers} layers"
        f"{dealt}"
    )


def _request(found: Fit) -> str:
    if found.layout.groups.pages is not None:
        return _paged_request(found)
    groups = found.layout.groups.num_groups
    shared = "" if groups == 1 else f" in {groups} groups of layers"
    return (
        f"kv_request = {_per_request(found):,} blocks{shared} * {_block(found)} ="
        f" {printed_gib(request_bytes(found))} GiB"
    )


def _naive(found: Fit) -> str:
    return (
        f"naive_request = {printed_gib(found.naive_request_bytes)} GiB:"
        f" {DEFINITIONS['naive_request']}"
    )


def _margin(found: Fit) -> str:
    return (
        f"margin = {printed_gib(found.budget.kv_pool.bytes)} - {printed_gib(request_bytes(found))}"
        f" = {printed_gib(found.margin_bytes)} GiB"
    )


def _blocks(found: Fit) -> str:
    return (
        f"num_blocks = floor({printed_gib(found.budget.kv_pool.bytes)} GiB / {_block(found)}) ="
        f" {found.start.num_blocks:,}"
    )


def _tokens(found: Fit) -> str:
    start, layout = found.start, found.layout
    if found.release.prints_tokens_of_one_request:
        how = f"floor({start.max_concurrency:.4f} * {found.settings.max_model_len:,})"
    else:
        how = f"floor({start.num_blocks:,} / {layout.groups.num_groups}) * {layout.block_tokens}"
    return f"kv_tokens = {how} = {start.kv_tokens:,}, as {found.release.name} prints it"


def _concurrency(found: Fit) -> str:
    start, length = found.start, found.settings.max_model_len
    flags = found.settings
    counted = found.layout.counted_blocks(length, max_in_flight=flags.max_in_flight)
    how = f"{start.num_blocks:,} / {counted:,} blocks of one request"
    if counted != _per_request(found):
        how += ", the bytes of its pages in blocks of the first group"
    if found.release.engine == "v0":
        how = f"{start.num_blocks * found.layout.block_tokens:,} / {length:,} tokens"
    return f"max_concurrency = {how} = {start.max_concurrency:.2f}"


def _longest(found: Fit) -> str:
    layout = found.layout
    most = found.start.num_blocks
    if layout.checked_bytes != layout.block_bytes:
        most = max(found.budget.kv_pool.bytes, 0) // layout.checked_bytes
    return (
        f"longest_request = {found.start.longest_request_tokens:,} tokens: the most whose blocks"
        f" are at most {most:,}"
    )


def _image(found: Fit) -> list[str]:
    """Blocks of one image where layers attend to it."""
    least, most = image_tokens(found.model)
    if not most:
        return []
    size, block = found.layout.block_tokens, found.layout.block_bytes
    few, many = -(-least // size), -(-most // size)
    return [
        f"kv_image = ceil({least:,} / {size}) to ceil({most:,} / {size}) = {few:,} to {many:,}"
        f" blocks * {block:,} B = {printed_gib(few * block)} to {printed_gib(many * block)} GiB,"
        " beside the text of a request"
    ]


def _kept(found: Fit) -> list[str]:
    """What a request needs where layers compress their past, whatever the server counts."""
    if not compresses(found.model):
        return []
    length = found.settings.max_model_len
    parts = kept(found.model, length, 1)
    total = sum(one.bytes for one in parts)
    return [
        f"kv_kept = {' + '.join(one.formula() for one in parts)} = {printed_gib(total)} GiB,"
        f" {total / length:,.1f} B per token at {length:,} tokens"
    ]


def _page_sums(found: Fit) -> str:
    """The groups of a pool whose pages differ in size."""
    return ", ".join(
        f"{one.groups} * {one.block_tokens} tokens" for one in found.layout.groups.types
    )


def _paged_request(found: Fit) -> str:
    """Blocks of each group, and what the check at start counts for each."""
    layout, flags = found.layout, found.settings
    terms = []
    for one in layout.groups.types:
        alone = replace(layout, groups=layout.groups._replace(types=(one,)))
        blocks = alone.blocks_per_request(flags.max_model_len, max_in_flight=flags.max_in_flight)
        held = "all tokens" if one.limit_tokens is None else f"{one.limit_tokens} and in flight"
        terms.append(f"{blocks:,} ({one.groups} * ceil({held} / {one.block_tokens}))")
    return (
        f"kv_request = {' + '.join(terms)} = {_per_request(found):,} blocks *"
        f" {layout.checked_bytes:,} B, as the check at start counts them, {flags.max_in_flight:,}"
        f" tokens in flight = {printed_gib(request_bytes(found))} GiB"
    )
