"""Steps that findings about GPUs recommend; ``{gpu}`` in them stands for the GPU's index."""

from __future__ import annotations

from msgspec.structs import replace

from exporter.model.finding import Finding
from exporter.model.text import Text

DRAIN_NODE = Text(
    "Drain the node: cordon it, end the processes on its GPUs.", "排空节点：禁止调度，结束其 GPU 上的进程。"
)
DRAIN = Text(
    "Drain GPU {gpu}: let its replica finish, then end its processes.",
    "排空 {gpu} 号卡：等副本处理完后结束其进程。",
)
RESET = Text("Run nvidia-smi --gpu-reset -i {gpu}.", "执行 nvidia-smi --gpu-reset -i {gpu}。")
COOLING = Text("Check fan, filter and airflow of GPU {gpu}.", "检查 {gpu} 号卡的风扇、滤网与风道。")
POWER = Text("Check the power supplies of the chassis.", "检查机箱电源。")
RESEAT = Text("Reseat GPU {gpu} or its riser.", "重新插拔 {gpu} 号卡或其转接卡。")
OTHER_PROCESS = Text(
    "Find the process that does not belong to the replica (nvidia-smi) and end or move it.",
    "找到不属于该副本的进程（nvidia-smi），结束或迁走它。",
)


def with_index(finding: Finding, gpu: str) -> Finding:
    """Return the finding with the index of its GPU in its steps."""
    steps = (Text(step.en.replace("{gpu}", gpu), step.zh.replace("{gpu}", gpu)) for step in finding.actions)
    return replace(finding, actions=tuple(steps))
