"""What is said of a page that its section of the configuration does not know."""

from __future__ import annotations

import pytest

from exporter.runtime.unknown_pages import ENGINE, GATEWAY, GPU_PAGE, STORE, explain

NODE = b"node_load1 2\nprocess_cpu_seconds_total 5\n"
VLLM = b'vllm:num_requests_running{model_name="m",engine="0"} 3\n'
HAPROXY = b'haproxy_server_status{proxy="p",server="s",state="UP"} 1\n'


@pytest.mark.parametrize("section", [ENGINE, GATEWAY, STORE, GPU_PAGE], ids=lambda section: section.name)
def test_a_strangers_page_is_named_by_what_it_has_beside_what_would_be_understood(section):
    said = explain(NODE, section)
    assert said.startswith(f"the page has node_load1, and no metrics of {section.titles[0]}, ")
    assert f"is this the URL of {section.target}? docs/" in said
    assert explain(b"<html>502</html>", section) == "the answer has no line that is a Prometheus sample"


@pytest.mark.parametrize(
    ("body", "section", "advice"),
    [
        (VLLM, GATEWAY, "the page is of an engine; list it under engines"),
        (VLLM, STORE, "the page is of an engine; list it under engines"),
        (HAPROXY, ENGINE, "the page is of a gateway; list it under gateways"),
        (b"master_key_count 3\n", ENGINE, "the page is of a KV-cache store; list it under stores"),
        (b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n', ENGINE, "the page is of a GPU exporter; list it under gpu.pages"),
    ],
)
def test_a_page_of_another_section_is_sent_there(body, section, advice):
    assert explain(body, section) == advice
