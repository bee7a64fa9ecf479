"""Runs the cookbook's trainer for soft targets, which has no command of its own: MODEL RENDERER TEACHER LOG

Eight tokens of the teacher at each position: targets and weights with two dimensions.
"""
import asyncio
import sys

from tinker_cookbook.distillation import train_off_policy
from tinker_cookbook.distillation.datasets import TeacherConfig
from tinker_cookbook.recipes.chat_sl.chat_datasets import NoRobotsBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def main(model, renderer, teacher, log):
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=model, renderer_name=renderer, max_length=256, batch_size=8)
    asyncio.run(train_off_policy.main(train_off_policy.Config(
        learning_rate=5e-3, model_name=model, recipe_name="off_policy_topk", renderer_name=renderer, lora_rank=16,
        n_teacher_targets=8, batch_size=8, save_every=4, eval_every=0, max_steps=8, log_path=log,
        dataset_configs=[train_off_policy.DatasetWithTeacher(
            dataset_builder=NoRobotsBuilder(common_config=common),
            teacher_config=TeacherConfig(base_model=model, load_checkpoint_path=teacher))])))


if __name__ == "__main__":
    main(*sys.argv[1:])
