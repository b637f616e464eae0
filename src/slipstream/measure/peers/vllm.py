"""vLLM, plain, on the same folder: its own kernels, the same weights and number format."""

from __future__ import annotations

from slipstream.measure.peers import Generate, Task


def open_peer(task: Task) -> Generate:
    """Return vLLM's `generate`, without prefix caching: every repeat pays for its prompt."""
    import vllm

    dtype = str(task.dtype).removeprefix("torch.")
    engine = vllm.LLM(
        model=str(task.folder),
        dtype=dtype,
        max_model_len=task.max_len,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def run(prompts: list[list[int]], seeds: list[int], max_tokens: int) -> list[list[int]]:
        params = [
            vllm.SamplingParams(
                temperature=task.temperature,
                top_p=task.top_p,
                top_k=task.top_k,
                min_p=task.min_p,
                seed=seed,
                max_tokens=max_tokens,
                stop_token_ids=list(task.eos_ids),
                ignore_eos=not task.eos_ids,
            )
            for seed in seeds
        ]
        found = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    return run
