"""The named scenarios, as literal records."""

from __future__ import annotations

from exporter.simulate.products import H100, H100_HALF, H100_PCIE, LLAMA_8B, LLAMA_70B, LLAMA_70B_EIGHT, QWEN_32B
from exporter.simulate.records import (
    Fault,
    MigSlice,
    ReplicaSpec,
    Scenario,
    Software,
    Symptom,
    Traffic,
)

CHAT = Traffic(rate=2.4, daily=0.30)
STEADY = Traffic(rate=2.4)
CODE = Traffic(rate=1.6, output=340)
QUIET = Traffic(rate=1e-6)
FIRST_FOUR = ((0, 1, 2, 3),)
LAST_FOUR = ((4, 5, 6, 7),)
TWO_REPLICAS = (
    ReplicaSpec(name="chat-a", model=LLAMA_70B, traffic=STEADY, ranks=FIRST_FOUR),
    ReplicaSpec(name="chat-b", model=LLAMA_70B, traffic=STEADY, ranks=LAST_FOUR),
)

SCENARIOS = (
    Scenario(
        name="healthy",
        summary="two replicas of one model on four GPUs each, all well",
        product=H100,
        replicas=(
            ReplicaSpec(name="chat-a", model=LLAMA_70B, traffic=CHAT, ranks=FIRST_FOUR),
            ReplicaSpec(name="chat-b", model=LLAMA_70B, traffic=CHAT, ranks=LAST_FOUR),
        ),
        expect=(
            Symptom(
                'llm_kv_cache_hit_ratio{replica="chat-a",window="1m"} > 0.3',
                "the prefix cache of chat-a answers for a good part of the prompt tokens",
                within=30.0,
            ),
        ),
    ),
    Scenario(
        name="mixed",
        summary="two models on six GPUs, two GPUs idle",
        product=H100,
        replicas=(
            ReplicaSpec(name="chat", model=LLAMA_70B, traffic=STEADY, ranks=FIRST_FOUR),
            ReplicaSpec(name="code", model=QWEN_32B, traffic=CODE, ranks=((4, 5),)),
        ),
        expect=(
            Symptom(
                'gpu_idle_seconds_total{gpu="6"} > 10',
                "GPU 6 and GPU 7 serve nothing, and their idle time is counted",
                within=15.0,
            ),
        ),
    ),
    Scenario(
        name="idle",
        summary="an idle node: two replicas without requests, all well",
        product=H100,
        replicas=(
            ReplicaSpec(name="chat-a", model=LLAMA_70B, traffic=QUIET, ranks=FIRST_FOUR),
            ReplicaSpec(name="chat-b", model=LLAMA_70B, traffic=QUIET, ranks=LAST_FOUR),
        ),
        expect=(
            Symptom('llm_requests_running{replica="chat-a"} == 0', "no requests arrive", within=10.0),
            Symptom('gpu_idle_seconds_total{gpu="0"} > 10', "all GPUs hold memory and idle", within=15.0),
        ),
    ),
    Scenario(
        name="pcie",
        summary="one replica over eight GPUs that talk over PCIe: slower than four GPUs with NVLink",
        product=H100_PCIE,
        busy_ratio=(0.998, 0.662, 0.611, 0.591, 0.560, 0.529, 0.489, 0.458),
        replicas=(
            ReplicaSpec(
                name="chat",
                model=LLAMA_70B_EIGHT,
                traffic=Traffic(rate=1.3),
                ranks=((0, 1, 2, 3, 4, 5, 6, 7),),
                step_scale=3.6,
            ),
        ),
        expect=(
            Symptom(
                'llm_cards_over_pcie{replica="chat"} == 1', "the GPUs of the replica talk over PCIe", within=10.0
            ),
            Symptom(
                'llm_card_path_info{replica="chat",path="SYS"} == 1',
                "and the slowest path crosses the CPU sockets",
                within=10.0,
            ),
        ),
    ),
    Scenario(
        name="oom",
        summary="one worker's memory grows until its GPU, not the first, is full and requests fail",
        product=H100,
        replicas=(
            ReplicaSpec(name="chat-a", model=LLAMA_70B, traffic=STEADY, ranks=FIRST_FOUR, memory_fraction=0.86),
            ReplicaSpec(name="chat-b", model=LLAMA_70B, traffic=STEADY, ranks=LAST_FOUR, memory_fraction=0.86),
        ),
        faults=(Fault(kind="memory", gpu=5, at=20.0, ramp=40.0),),
        expect=(
            Symptom(
                'gpu_memory_used_bytes{gpu="5"} > 84e9',
                "the memory of GPU 5 is full while its neighbours have room",
                within=45.0,
            ),
            Symptom('llm_error_ratio{replica="chat-b",window="1m"} > 0.01', "requests to chat-b fail", within=60.0),
        ),
    ),
    Scenario(
        name="hang",
        summary="a GPU is lost: its replica freezes in a collective and requests wait",
        product=H100,
        replicas=TWO_REPLICAS,
        faults=(Fault(kind="lost", gpu=6, at=30.0, ramp=8.0),),
        expect=(
            Symptom('gpu_nvlink_links_down{gpu="6"} == 1', "one NVLink of GPU 6 is down", within=5.0),
            Symptom('gpu_up{gpu="6"} == 0', "GPU 6 is lost", within=12.0),
            Symptom('llm_frozen{replica="chat-b"} == 1', "chat-b runs requests and generates nothing", within=40.0),
        ),
    ),
    Scenario(
        name="skew",
        summary="eight data-parallel ranks, one GPU each, and a scheduler that prefers the first",
        product=H100,
        replicas=(
            ReplicaSpec(
                name="chat",
                model=LLAMA_8B,
                traffic=Traffic(
                    rate=65.4,
                    prompt=160,
                    output=300,
                    output_spread=0.5,
                    prefix=(256, 1024),
                    client_timeout=16.0,
                    shares=(12.6, 10.9, 10.0, 9.0, 7.9, 6.7, 5.2, 3.1),
                ),
                ranks=((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)),
                max_sequences=64,
            ),
        ),
        expect=(
            Symptom(
                'llm_rank_imbalance_max_to_mean_ratio{replica="chat",signal="generation_token_rate"} > 1.3',
                "the busiest rank generates far more tokens than the mean",
                within=60.0,
            ),
            Symptom(
                'gpu_utilization_spread_ratio{scope="replica",group="chat"} > 0.3',
                "utilisation falls from GPU 0 to GPU 7",
                within=60.0,
            ),
        ),
    ),
    Scenario(
        name="drift",
        summary="two nodes of one service whose driver, CUDA and engine versions differ (node 0 and node 1)",
        product=H100,
        replicas=TWO_REPLICAS,
        software=(
            Software(),
            Software(driver="570.172.08", nvml="12.570.172.08", cuda=12080, engine="0.31.1", pace=1.15),
        ),
        expect=(
            Symptom(
                'gpu_driver_info{driver_version="580.95.05"} == 1',
                "start a second node with shardwatch demo --scenario drift --node 1 --listen 127.0.0.1:9854 and "
                "compare with shardwatch check 127.0.0.1:9853 127.0.0.1:9854: its driver is older",
                within=10.0,
            ),
            Symptom('llm_engine_info{replica="chat-a",version="0.32.0"} == 1', "so is its engine", within=10.0),
        ),
    ),
    Scenario(
        name="heat",
        summary="the cooler of one GPU fails: it throttles, and the other GPUs of its replica wait for it",
        product=H100,
        replicas=TWO_REPLICAS,
        faults=(Fault(kind="heat", gpu=2, at=20.0, strength=0.30),),
        expect=(
            Symptom(
                'gpu_temperature_margin_celsius{gpu="2"} < 10', "GPU 2 is close to thermal throttling", within=60.0
            ),
            Symptom(
                'gpu_straggler{gpu="2",replica="chat-a",cause="thermal"} == 1',
                "the other GPUs of chat-a wait for GPU 2",
                within=75.0,
            ),
        ),
    ),
    Scenario(
        name="powercap",
        summary="the power limit of one GPU is lowered: it runs at a lower clock, and its replica waits for it",
        product=H100,
        replicas=TWO_REPLICAS,
        faults=(Fault(kind="cap", gpu=5, at=20.0, strength=0.35),),
        expect=(
            Symptom(
                'gpu_straggler{gpu="5",replica="chat-b",cause="power_cap"} == 1',
                "the other GPUs of chat-b wait for GPU 5",
                within=20.0,
            ),
        ),
    ),
    Scenario(
        name="brake",
        summary="the power supply brakes one GPU, and its replica waits for it",
        product=H100,
        replicas=TWO_REPLICAS,
        faults=(Fault(kind="brake", gpu=1, at=20.0, strength=0.7),),
        expect=(
            Symptom(
                'gpu_straggler{gpu="1",replica="chat-a",cause="power_brake"} == 1',
                "the other GPUs of chat-a wait for GPU 1",
                within=20.0,
            ),
        ),
    ),
    Scenario(
        name="tenant",
        summary="another tenant's process works on one GPU, and its replica waits for it",
        product=H100,
        replicas=TWO_REPLICAS,
        faults=(Fault(kind="tenant", gpu=6, at=20.0, strength=0.35),),
        expect=(
            Symptom(
                'gpu_straggler{gpu="6",replica="chat-b",cause="other_tenant"} == 1',
                "the other GPUs of chat-b wait for GPU 6",
                within=20.0,
            ),
        ),
    ),
    Scenario(
        name="narrow",
        summary="two replicas over PCIe, and the link of one GPU has a quarter of its lanes: the others wait",
        product=H100_PCIE,
        replicas=tuple(
            ReplicaSpec(name=name, model=LLAMA_70B, traffic=Traffic(rate=0.8), ranks=gpus, step_scale=1.5)
            for name, gpus in (("chat-a", FIRST_FOUR), ("chat-b", LAST_FOUR))
        ),
        faults=(Fault(kind="lanes", gpu=3, at=20.0, strength=0.25),),
        expect=(
            Symptom(
                'gpu_straggler{gpu="3",replica="chat-a",cause="pcie"} == 1',
                "the other GPUs of chat-a wait for GPU 3",
                within=20.0,
            ),
            Symptom(
                'gpu_pcie_link_degraded{gpu="3"} == 1', "the PCIe link of GPU 3 is below its rating", within=80.0
            ),
        ),
    ),
    Scenario(
        name="engines",
        summary="one model behind four kinds of engines, two GPUs each: vLLM, SGLang, TGI and Ray Serve",
        product=H100,
        replicas=(
            ReplicaSpec(name="code-vllm", model=QWEN_32B, traffic=CODE, ranks=((0, 1),)),
            ReplicaSpec(name="code-sglang", model=QWEN_32B, traffic=CODE, ranks=((2, 3),), engine="sglang"),
            ReplicaSpec(name="code-tgi", model=QWEN_32B, traffic=CODE, ranks=((4, 5),), engine="tgi"),
            ReplicaSpec(name="code-ray", model=QWEN_32B, traffic=CODE, ranks=((6, 7),), engine="ray_serve"),
        ),
        expect=(
            Symptom(
                'llm_up{replica="code-sglang",engine="sglang"} == 1',
                "SGLang is read with its own field table",
                within=10.0,
            ),
            Symptom(
                'llm_up{replica="code-tgi",engine="tgi"} == 1', "TGI is read with its own field table", within=10.0
            ),
            Symptom(
                'llm_up{replica="code-ray",engine="ray_serve"} == 1',
                "Ray Serve is read with its own field table",
                within=10.0,
            ),
        ),
    ),
    Scenario(
        name="nic",
        summary="two replicas: a network adapter flaps and loses its link, and the replica that needs it freezes",
        product=H100,
        replicas=TWO_REPLICAS,
        has_nics=True,
        faults=(Fault(kind="nic", gpu=5, at=20.0, ramp=60.0),),
        expect=(
            Symptom(
                'nic_port_link_downs_total{device="mlx5_5",port="1"} > 2', "the link goes down and up", within=40.0
            ),
            Symptom('nic_port_down{device="mlx5_5",port="1"} == 1', "the port is down", within=75.0),
            Symptom('llm_frozen{replica="chat-b"} == 1', "chat-b runs requests and generates nothing", within=110.0),
        ),
    ),
    Scenario(
        name="mig",
        summary="one MIG-enabled GPU: a small model on one instance, the other idle; large models on other GPUs",
        product=H100,
        mig_slices=(
            MigSlice(parent=7, product=H100_HALF, share=3 / 7),
            MigSlice(parent=7, product=H100_HALF, share=3 / 7),
        ),
        busy_ratio=(1.0,) * 10,
        replicas=(
            ReplicaSpec(name="chat", model=LLAMA_70B, traffic=STEADY, ranks=FIRST_FOUR),
            ReplicaSpec(name="code", model=QWEN_32B, traffic=CODE, ranks=((4, 5),)),
            ReplicaSpec(name="small", model=LLAMA_8B, traffic=Traffic(rate=1.5), ranks=((8,),), step_scale=2.2),
        ),
        expect=(
            Symptom('gpu_mig_info{gpu="7:0",profile="3g.40gb"} == 1', "GPU 7 has MIG instances", within=10.0),
            Symptom('gpu_sm_active_ratio{gpu="7:0"} > 0', "its first instance works, the second idles", within=20.0),
        ),
    ),
)


def find(name: str) -> Scenario:
    """Return the scenario of that name; KeyError, with the known names, when there is none."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    known = ", ".join(scenario.name for scenario in SCENARIOS)
    raise KeyError(f"no scenario is called {name!r}; known: {known}")
