"""What each engine accepts, how it divides memory, what it adds: data with versions."""

from typing import Literal

EngineName = Literal["sglang", "vllm", "trtllm"]
