"""The trainer's process: TRL's AsyncGRPOTrainer on games, publishing each step. Lines of JSON say how it goes.

python -m wordle.trainer --model DIRECTORY --run RUN --state DIRECTORY --server URL --environment URL
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
import trl_on_cpu

from wordle.rules import LENGTH

SECRETS_A_STEP = 8
GAMES_A_SECRET = 16
WARM_UP_STEPS = 10
MAX_STALENESS = 4


def make_trainer(arguments):
    trl_on_cpu.install()
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from weightwire.integrations.trl import WeightTransfer

    from wordle.rollouts import GameWorker

    torch.set_num_threads(1)
    games = SECRETS_A_STEP * GAMES_A_SECRET
    config = AsyncGRPOConfig(
        output_dir=os.path.join(arguments.state, "trainer"),
        vllm_server_base_url=arguments.server,
        max_steps=arguments.steps,
        learning_rate=arguments.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARM_UP_STEPS,
        weight_decay=0.0,
        max_grad_norm=1.0,
        num_generations=GAMES_A_SECRET,
        per_device_train_batch_size=games,
        token_budget=0,  # so many games a step, whatever their length
        max_staleness=MAX_STALENESS,
        seed=arguments.seed,
        dtype="float32",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="steps" if arguments.save_steps else "no",
        save_steps=arguments.save_steps or 500,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.response_template = {}  # TRL looks for one; games need none
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]]})
    worker = GameWorker(
        environment_url=arguments.environment,
        first_task=arguments.seed * 100_000,
        model_name=arguments.model,
        dataset=data,
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=GAMES_A_SECRET,
        # Enough to keep the servers busy; more would be older when it is used.
        max_inflight_tasks=games,
        queue_maxsize=games // 2,
        score_queue_maxsize=1,
        vllm_server_url=arguments.server,
        max_tokens=LENGTH,
    )

    class Report(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "reward" in logs:
                say("step", step=state.global_step, **{key: logs.get(key) for key in REPORTED})

    transfer = WeightTransfer(arguments.run, state_dir=os.path.join(arguments.state, "publisher"), background=True)
    trainer = AsyncGRPOTrainer(
        model=arguments.model,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    transfer.attach(trainer)
    trainer.add_callback(Report())  # after what adds to the log
    return trainer, transfer


REPORTED = [
    *("reward", "weightwire/version", "weightwire/delta_bytes", "weightwire/deltas", "weightwire/changed_ratio"),
    "weightwire/blocked_seconds",
    *("sample/staleness_mean", "sample/staleness_max", "sample/dropped_stale_total", "perf/step_s", "perf/fwd_bwd_s"),
    *("perf/rollout_wait_s", "ratio", "kl", "entropy", "clip_ratio/region_mean", "grad_norm"),
]


def say(what, **more):
    print(json.dumps({"what": what, "time": time.time(), **more}), flush=True)


def last_checkpoint(folder):
    """The newest one that is whole; a trainer that was killed while it wrote one leaves it without its state."""
    found = sorted(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for path in found:
        with contextlib.suppress(OSError, ValueError):
            json.loads((path / "trainer_state.json").read_text())
            return str(path)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "run", "state", "server", "environment"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-steps", type=int, default=0, help="a checkpoint each so many steps, to go on from")
    arguments = parser.parse_args()
    trainer, transfer = make_trainer(arguments)
    trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args.output_dir))
    # As they are here, not as they were published: to be compared with what the servers hold.
    weights = os.path.join(arguments.state, "last")
    trainer.model.to(torch.bfloat16).save_pretrained(weights)
    say("end", version=transfer.version, weights=weights)


if __name__ == "__main__":
    main()
