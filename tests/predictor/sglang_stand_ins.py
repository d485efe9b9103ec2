"""What SGLang's scheduling code asks of the rest of SGLang (see sglang_source.py): pools that only
count, requests that are numbers, and every other feature switched off."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from pipeline.messages import EngineLimits


class Off:
    """What is not there is a feature that is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Kv(Off):
    """What a request holds."""

    kv_committed_len = 0
    holds_kv = False


class StandInRequest:
    """`prefix_len` of its tokens are computed, those up to `extend_end` are being computed."""

    def __init__(self, key: str, prompt: int, target: int, tokens_max: int) -> None:
        self.rid = key
        self.origin_input_ids, self.output_ids = [0] * prompt, list[int]()
        self.sampling_params = SimpleNamespace(max_new_tokens=tokens_max, ignore_eos=False)
        self.kv = Kv()
        self.pages = self.prefix_len = self.extend_end = self.host_hit_length = 0
        self.inflight_middle_chunks = self.swa_host_hit_length = self.storage_hit_length = 0
        self.auxiliary_swa_host_hit_length = self.storage_hit_start = 0
        self.host_hit_is_storage = self.retracted_stain = False
        self.beam_group = self.token_indices_to_pool = self.last_node = None
        self.cache_request_handle = None
        self._target = target

    @property
    def full_untruncated_fill_ids(self) -> list[int]:
        return self.origin_input_ids + self.output_ids

    @property
    def extend_len(self) -> int:
        return self.extend_end - self.prefix_len

    def finished(self) -> bool:
        return len(self.output_ids) >= self._target

    def init_next_round_input(self, tree_cache: object = None) -> None: ...

    def needs_host_load_back(self) -> bool:
        return False

    def materialized_host_hit_len(self) -> int:
        return 0

    def fulfilled_storage_hit_len(self, prefix_len: int) -> int:
        return 0


class StandInPool(Off):
    """Its allocator and its tree, of which nothing is ever found again."""

    def __init__(self, limits: EngineLimits, names: dict[str, Any]) -> None:
        self.pages, self.page_size = limits.kv_blocks, limits.block_size
        self.disable = False
        self.req_to_token_pool = Off()
        self._names = names

    def available_size(self) -> int:
        return self.pages * self.page_size

    def evictable_size(self) -> int:
        return 0

    def check_decode_capacity(self, *, num_tokens: int, **_: object) -> bool:
        return self.available_size() >= num_tokens

    def request_slot_reserve(self, **_: object) -> int:
        return 0

    def create_prefill_budget(self, tree_cache: object, **more: object) -> Any:
        return self._names["PrefillBudget"](self, tree_cache, **more)

    def supports_mamba(self) -> bool:
        return False

    def lock(self, node: object) -> None: ...

    def unlock(self, lock: object) -> None: ...

    def finish_storage_prefetch_admission(self, *_: object, **__: object) -> None: ...

    def discard_storage_prefetch_accounting(self, handle: object) -> None: ...

    def hold(self, request: Any, tokens: int) -> None:
        taken = -(-tokens // self.page_size) - request.pages
        request.pages += taken
        self.pages -= taken
        assert self.pages >= 0, "SGLang would have run out of memory"
        request.kv.kv_committed_len, request.kv.holds_kv = tokens, True

    def give_back(self, request: Any) -> None:
        self.pages += request.pages
        request.pages = request.kv.kv_committed_len = 0
        request.kv.holds_kv = False


class StandInBatch:
    """Mixed in before SGLang's ScheduleBatch: the same lists without tensors."""

    def __init__(self, reqs: list[Any], pool: StandInPool, chunked_req: Any = None) -> None:
        self.reqs, self.chunked_req = reqs, chunked_req
        self.token_to_kv_pool_allocator = self.tree_cache = self._pool = pool
        self.batch_is_full = self.is_prefill_only = self._extends = False
        self.spec_algorithm = SimpleNamespace(is_none=lambda: True)
        self.forward_mode = SimpleNamespace(is_extend=lambda: self._extends)

    @classmethod
    def init_new(
        cls, reqs: list[Any], _: object, pool: StandInPool, *__: object, chunked_req: Any
    ) -> Any:
        return cls(reqs, pool, chunked_req)

    def batch_size(self) -> int:
        return len(self.reqs)

    def is_empty(self) -> bool:
        return not self.reqs

    def filter_batch(
        self, reqs_to_exclude: Collection[Any] = (), keep_indices: list[int] | None = None
    ) -> None:
        if keep_indices is not None:
            self.reqs = [self.reqs[index] for index in keep_indices]
        else:
            self.reqs = [r for r in self.reqs if not r.finished() and r not in reqs_to_exclude]

    def merge_batch(self, other: "StandInBatch") -> None:
        self.reqs = [*self.reqs, *other.reqs]

    def release_req(self, index: int, *_: object, **__: object) -> bool:
        request = self.reqs[index]
        self._pool.give_back(request)
        request.prefix_len = 0
        return True

    def prepare_for_extend(self) -> None:
        self._extends = True
        for request in self.reqs:
            self._pool.hold(request, request.extend_end)

    def prepare_for_decode(self) -> None:
        self._extends = False
        for request in self.reqs:
            self._pool.hold(request, request.kv.kv_committed_len + 1)


class StandInScheduler(Off):
    """Mixed in before SGLang's Scheduler: its attributes, and methods that do nothing here."""

    def __init__(self, limits: EngineLimits, names: dict[str, Any]) -> None:
        self.pool = self.tree_cache = self.token_to_kv_pool_allocator = StandInPool(limits, names)
        self.page_size, self.max_running_requests = limits.block_size, limits.max_num_seqs
        self.max_prefill_tokens = limits.max_prefill_tokens
        self.chunked_prefill_size = (
            limits.max_num_batched_tokens if limits.chunked_prefill else None
        )
        self.req_to_token_pool = SimpleNamespace(available_size=self._rows_free)
        self.beam_coordinator = SimpleNamespace(pending_member_rows=lambda _: 0)
        self.running_batch = names["ScheduleBatch"]([], self.pool)
        self.last_batch = self.chunked_req = None
        self.waiting_queue: list[Any] = []
        self.new_token_ratio_tracker = names["NewTokenRatioTracker"].from_config()
        self.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
        self.policy = SimpleNamespace(
            calc_priority=lambda *_, **__: None, shortest_prefill_chunk_limit=lambda *_: None
        )
        self.tp_worker = SimpleNamespace(
            model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
        )
        self.max_prefill_bs = self.priority_scheduling_preemption_threshold = 0
        self.load_inquirer, self.metrics_reporter = MagicMock(), MagicMock()
        self.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, **_: batch)
        self._names = names

    def _rows_free(self) -> int:
        held = len(self.running_batch.reqs) + (self.chunked_req is not None)
        return self.max_running_requests - held

    def get_prefill_adder_class(self) -> Any:
        return self._names["PrefillAdder"]

    def process_pending_chunked_abort(self) -> None: ...

    def _process_hicache_events(self) -> None: ...

    def _should_defer_prefill(self, batch: object) -> bool:
        return False

    def _arm_prefill_decode_interval(self, batch: object) -> None: ...

    def stash_chunked_request(self, request: Any) -> None:
        request.prefix_len = request.extend_end

    def _add_request_to_queue(self, request: Any, **_: object) -> None:
        self.waiting_queue.append(request)
