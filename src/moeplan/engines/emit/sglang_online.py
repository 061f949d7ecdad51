"""What SGLang does to a checkpoint as it loads it."""

from __future__ import annotations

from moeplan.predict import Prediction


def online_fp8(prediction: Prediction) -> bool:
    """Whether SGLang can make the formats itself: it quantises a BF16 checkpoint to FP8 as it loads."""
    old, new = prediction.checkpoint, prediction.model.formats
    return (
        prediction.formats_changed
        and (old.experts, old.linear, old.attention) == ("bf16", "bf16", "bf16")
        and {new.linear, new.attention, new.experts if prediction.model.is_moe else "fp8"} <= {"fp8", "fp8_block"}
    )
