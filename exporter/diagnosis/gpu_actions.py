"""Steps that findings about GPUs recommend."""

from __future__ import annotations

from exporter.model.text import Text

DRAIN_NODE = Text(
    "Drain the node: cordon it, end the processes on its GPUs.", "排空节点：禁止调度，结束其 GPU 上的进程。"
)
DRAIN = Text(
    "Drain the GPU: let its replica finish, then end its processes.", "排空该 GPU：等副本处理完后结束其进程。"
)
RESET = Text("Run nvidia-smi --gpu-reset -i GPU.", "执行 nvidia-smi --gpu-reset -i GPU。")
FAN = Text("Check fan, airflow and inlet temperature.", "检查风扇、风道与进风温度。")
POWER = Text("Check the power supplies of the chassis.", "检查机箱电源。")
RESEAT = Text("Reseat the GPU or its riser.", "重新插拔 GPU 或转接卡。")
OTHER_PROCESS = Text(
    "Find the process that does not belong to the replica (nvidia-smi) and end or move it.",
    "找到不属于该副本的进程（nvidia-smi），结束或迁走它。",
)
