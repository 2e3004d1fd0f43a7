"""Builds vLLM's own scheduler for a recording's config, without a model and without a GPU.

vLLM is imported here only, and only when a recording is made. The names used are those of
`vllm.v1`; what differs between versions is asked for by name and refused when it is needed but
missing, so that an older or newer version either records or says what it lacks.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.vllm_recorder.errors import RecordError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL = (
    "Make an environment for it (Python 3.11) with the CPU build of PyTorch and run\n"
    "    pip install torch==2.13.0\n"
    "    pip install --no-deps vllm==0.33.0\n"
    f"    pip install -r {REQUIREMENTS}"
)


class PlainModel:
    """Stands for the model's config: a text generator. Whatever else is asked, it has not.

    A real config would need a checkpoint's files and imports the model's code.
    """

    runner_type = "generate"
    skip_tokenizer_init = True
    architectures = ()

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def __getattr__(self, name: str) -> bool:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def installed_version() -> str:
    """Version of the installed vLLM, or RecordError with the way to install it."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise RecordError(f"vLLM is not installed here. {INSTALL}") from None


def _missing(error: ModuleNotFoundError) -> RecordError:
    """What to say about a module that vLLM imports and that is not there."""
    version = installed_version()
    if (error.name or "").split(".")[0] == "vllm":
        return RecordError(f"vLLM {version} has no module {error.name}")
    return RecordError(
        f"vLLM {version} imports {error.name!r}, which is not installed; "
        f"install it, or all that vLLM 0.33.0 imports here: pip install -r {REQUIREMENTS}"
    )


def load(module: str, name: str) -> Any:
    """An object of vLLM; RecordError if the module or something it imports is missing."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    level = os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm").setLevel(level)
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    except ImportError as error:
        raise RecordError(f"{module} of vLLM cannot be imported: {error}") from error
    except AttributeError:
        raise RecordError(f"vLLM {installed_version()} has no {module}.{name}") from None


def load_or_none(module: str, name: str) -> Any:
    """An object of vLLM that not every version has."""
    try:
        return load(module, name)
    except RecordError:
        return None


def call(function: Callable[..., Any], values: dict[str, Any], **unneeded: Any) -> Any:
    """Call with those arguments that this version takes.

    One that it does not take is an error unless `unneeded` holds the same value for it, which is
    how a version without the argument behaves.
    """
    known = _parameters(function)
    for name, value in values.items():
        if name not in known and not (name in unneeded and unneeded[name] == value):
            raise RecordError(
                f"vLLM {installed_version()} cannot do this: "
                f"{function.__qualname__} has no argument {name!r}"
            )
    return function(**{name: value for name, value in values.items() if name in known})


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Names of a function's or a class's arguments, looked up in the base that names them."""
    for item in getattr(function, "__mro__", (function,)):
        parameters = inspect.signature(item).parameters
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            return set(parameters)
    return set()


def speculative_config(spec: dict[str, Any] | None) -> Any:
    """Speculation by the named method, as far as the scheduler looks at it."""
    if spec is None:
        return None
    # Only n-gram drafting needs no draft model; the scheduler looks at the method's name alone.
    config = load("vllm.config", "SpeculativeConfig")(
        method="ngram",
        num_speculative_tokens=spec["num_speculative_tokens"],
        prompt_lookup_min=2,
        prompt_lookup_max=2,
    )
    config.method = spec["method"]
    return config


def vllm_config(config: dict[str, Any]) -> Any:
    """vLLM's own config object."""
    groups = groups_of(config)
    scheduler = call(
        load("vllm.config", "SchedulerConfig"),
        {
            "max_model_len": config["max_model_len"],
            "is_encoder_decoder": False,
            "max_num_seqs": config["max_num_seqs"],
            "max_num_batched_tokens": config["max_num_batched_tokens"],
            "enable_chunked_prefill": config["enable_chunked_prefill"],
            "long_prefill_token_threshold": config["long_prefill_token_threshold"],
            "policy": config["policy"],
            "watermark": config["watermark"],
            "scheduler_reserve_full_isl": config["scheduler_reserve_full_isl"],
            "async_scheduling": config["async_scheduling"],
        },
        is_encoder_decoder=False,
        watermark=0.0,
        scheduler_reserve_full_isl=False,
        async_scheduling=False,
    )
    cache = call(
        load("vllm.config", "CacheConfig"),
        {
            "block_size": min(group["block_size"] for group in groups),
            "enable_prefix_caching": config["enable_prefix_caching"],
            "prefix_cache_retention_interval": config["retention_interval"],
        },
        prefix_cache_retention_interval=None if needs_retention(config) else 0,
    )
    built = load("vllm.config", "VllmConfig")(
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=load("vllm.config", "DeviceConfig")(device="cpu"),
        speculative_config=speculative_config(config["spec"]),
    )
    cache.num_gpu_blocks = config["num_gpu_blocks"]
    built.model_config = PlainModel(config["max_model_len"])
    if built.scheduler_config.async_scheduling is not config["async_scheduling"]:
        raise RecordError("vLLM changed async_scheduling; this config cannot be recorded")
    return built


def needs_retention(config: dict[str, Any]) -> bool:
    """Whether the retention interval has an effect."""
    return config["enable_prefix_caching"] and any(
        group["type"] == "sliding" for group in groups_of(config)
    )


def groups_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The KV groups, each with its block size."""
    groups = config["kv_groups"] or [{"type": "full"}]
    return [{"block_size": config["block_size"], **group} for group in groups]


def kv_cache_config(config: dict[str, Any]) -> Any:
    """The pool and its layer groups."""
    import torch

    group_class = load("vllm.v1.kv_cache_interface", "KVCacheGroupSpec")
    groups = []
    for number, group in enumerate(groups_of(config)):
        values = {
            "block_size": group["block_size"],
            "num_kv_heads": 1,
            "head_size": 8,
            "dtype": torch.float16,
        }
        if group["type"] == "sliding":
            spec = call(
                load("vllm.v1.kv_cache_interface", "SlidingWindowSpec"),
                {**values, "sliding_window": group["window"]},
            )
        else:
            spec = call(load("vllm.v1.kv_cache_interface", "FullAttentionSpec"), values)
        groups.append(group_class(layer_names=[f"layer.{number}"], kv_cache_spec=spec))
    return call(
        load("vllm.v1.kv_cache_interface", "KVCacheConfig"),
        {
            "num_blocks": config["num_gpu_blocks"],
            "kv_cache_tensors": [],
            "kv_cache_groups": groups,
            "prefix_cache_retention_interval": config["retention_interval"],
        },
        prefix_cache_retention_interval=None if needs_retention(config) else 0,
    )


def block_sizes(built: Any, kv_config: Any) -> tuple[int, int]:
    """(scheduler block size, hash block size) as vLLM derives them."""
    resolve = load_or_none("vllm.v1.core.kv_cache_utils", "resolve_kv_cache_block_sizes")
    if resolve is not None:
        scheduler_block, hash_block = resolve(kv_config, built)
        return scheduler_block, hash_block
    sizes = [group.kv_cache_spec.block_size for group in kv_config.kv_cache_groups]
    caching = built.cache_config.enable_prefix_caching
    return math.lcm(*sizes), math.gcd(*sizes) if caching else math.lcm(*sizes)


class Engine:
    """The scheduler, and the few things around it that an engine does."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.vllm_config = vllm_config(config)
        kv_config = kv_cache_config(config)
        self.block_size, self.hash_block_size = block_sizes(self.vllm_config, kv_config)
        manager = load("vllm.v1.structured_output", "StructuredOutputManager")(self.vllm_config)
        self.scheduler = call(
            self.vllm_config.scheduler_config.get_scheduler_cls(),
            {
                "vllm_config": self.vllm_config,
                "kv_cache_config": kv_config,
                "structured_output_manager": manager,
                "block_size": self.block_size,
                "hash_block_size": self.hash_block_size,
            },
            block_size=self.block_size,
            hash_block_size=self.block_size,
        )
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self._hasher = self._block_hasher()
        self._request_class = load("vllm.v1.request", "Request")
        self._aborted = load("vllm.v1.request", "RequestStatus").FINISHED_ABORTED
        self._sampling = load("vllm", "SamplingParams")
        self._output = load("vllm.v1.outputs", "ModelRunnerOutput")
        self._drafts = load("vllm.v1.outputs", "DraftTokenIds")

    def _block_hasher(self) -> Any:
        if not self.config["enable_prefix_caching"]:
            return None
        utils = "vllm.v1.core.kv_cache_utils"
        name = self.vllm_config.cache_config.prefix_caching_hash_algo
        function = load("vllm.utils.hashing", "get_hash_fn_by_name")(name)
        load(utils, "init_none_hash")(function)
        lookahead = getattr(self.vllm_config, "num_hash_lookahead_tokens", 0)
        make = load(utils, "get_request_block_hasher")
        arguments = [self.hash_block_size, function]
        return make(*arguments, lookahead) if lookahead else make(*arguments)

    def refuses(self, prompt_tokens: int) -> bool:
        """Whether vLLM's front end refuses a prompt of this length."""
        front_end = load_or_none("vllm.v1.engine.input_processor", "InputProcessor")
        check = getattr(front_end, "_validate_prompt_len", None)
        if check is None:
            return prompt_tokens >= int(self.config["max_model_len"])
        stand_in = SimpleNamespace(
            skip_prompt_length_check=False,
            model_config=self.vllm_config.model_config,
            supports_mm_inputs=False,
            mm_encoder_cache_size=0,
        )
        refusal = load_or_none("vllm.exceptions", "VLLMValidationError") or ValueError
        try:
            check(stand_in, prompt_tokens, "decoder")
        except (ValueError, refusal):
            return True
        return False

    def add(self, request: dict[str, Any], prompt: list[int]) -> None:
        """Queue a request. Equal arrival steps tie."""
        self.scheduler.add_request(
            self._request_class(
                request_id=request["id"],
                prompt_token_ids=prompt,
                sampling_params=self._sampling(
                    max_tokens=request["output_tokens"], ignore_eos=True, temperature=0.0
                ),
                pooling_params=None,
                arrival_time=float(request["arrival_step"]),
                priority=request.get("priority") or 0,
                block_hasher=self._hasher,
            )
        )

    def abort(self, request_id: str) -> bool:
        """Cancel a request; False if it is not in the engine."""
        if request_id not in self.scheduler.requests:
            return False
        self.scheduler.finish_requests(request_id, self._aborted)
        return True

    def update(self, output: Any, sampled: dict[str, list[int]]) -> list[list[str]]:
        """Hand a step's tokens to the scheduler; (id, reason) of requests it finishes."""
        ids = list(output.num_scheduled_tokens)
        result = call(
            self._output,
            {
                "req_ids": ids,
                "req_id_to_index": {name: index for index, name in enumerate(ids)},
                "sampled_token_ids": [sampled.get(name, []) for name in ids],
                "logprobs": None,
                "prompt_logprobs_dict": {},
                "pooler_output": [],
            },
        )
        replies = self.scheduler.update_from_output(output, result)
        return [
            [item.request_id, str(item.finish_reason)]
            for reply in replies.values()
            for item in reply.outputs
            if item.finish_reason is not None
        ]

    def propose(self, drafts: dict[str, list[int]]) -> None:
        """Hand over the drafts for the next step."""
        self.scheduler.update_draft_token_ids(self._drafts(list(drafts), list(drafts.values())))

    def resolved(self) -> dict[str, Any]:
        """What vLLM made of the config."""
        built, scheduler = self.vllm_config, self.scheduler
        spec = built.speculative_config
        in_flight = getattr(built, "max_in_flight_tokens", None)
        groups = scheduler.kv_cache_config.kv_cache_groups
        return {
            "scheduler_class": type(scheduler).__name__,
            "scheduler_block_size": self.block_size,
            "hash_block_size": self.hash_block_size,
            "num_lookahead_tokens": scheduler.num_lookahead_tokens,
            "num_hash_lookahead_tokens": getattr(built, "num_hash_lookahead_tokens", 0),
            "num_prefill_lookahead_tokens": getattr(built, "num_prefill_lookahead_tokens", 0),
            "draft_slots": getattr(spec, "max_num_new_slots_for_drafting", 0) if spec else 0,
            "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
            "max_in_flight_tokens": in_flight,
            "use_eagle_block_drop": getattr(scheduler, "use_eagle_block_drop", scheduler.use_eagle),
            "watermark_blocks": getattr(scheduler.kv_cache_manager, "watermark_blocks", 0),
            "use_v2_model_runner": getattr(built, "use_v2_model_runner", False),
            "num_groups": len(groups),
            "admission_cap_blocks": [
                _admission_cap(group.kv_cache_spec, in_flight, self.config["max_model_len"])
                for group in groups
            ],
        }


def _admission_cap(spec: Any, in_flight: int | None, max_model_len: int) -> int | None:
    cap = getattr(spec, "max_admission_blocks_per_request", None)
    return None if cap is None or in_flight is None else cap(in_flight, max_model_len)


def build(config: dict[str, Any]) -> Engine:
    """The engine for a config; RecordError if vLLM refuses it."""
    try:
        return Engine(config)
    except RecordError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    except Exception as error:
        raise RecordError(f"vLLM {installed_version()} refuses the config: {error}") from error
