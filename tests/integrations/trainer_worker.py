"""Hugging Face's Trainer in one of several processes. Usage: FOLDER [adapters]."""

import os
import sys
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import tacit


class OwnNoise(TrainerCallback):
    """As in docs/hugging-face.md."""

    def on_train_begin(self, args, state, control, **kwargs):
        torch.manual_seed(args.seed + args.process_index)


def main(folder, adapters):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    recipe = tacit.adapters(2) if adapters else None
    model = tacit.variational(BertForSequenceClassification(config), recipe)
    words = torch.randint(20, (32, 6))
    data = [{"input_ids": each, "labels": each[0] % 2} for each in words]
    arguments = TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo",
        save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
        learning_rate=0.01,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[OwnNoise()]
    )
    trainer.train()
    found = {
        "state": model.state_dict(),
        "loss": trainer.evaluate()["eval_loss"],
        "noise": model.train()(words).logits.detach(),
    }
    torch.save(found, Path(folder) / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(sys.argv[1], adapters="adapters" in sys.argv)
