"""A model of Triton with the tensors of its vLLM backend: its reply is its adapter's name and the prompt's words."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb

ADAPTERS = ("1" * 64, "2" * 64)


class TritonPythonModel:
    def execute(self, requests):  # type: ignore[no-untyped-def]
        for request in requests:
            sender = request.get_response_sender()
            prompt = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            given = json.loads(pb.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()[0])
            name = given.get("lora_name", "")
            if name and name not in ADAPTERS:
                error = pb.TritonError(f"LoRA {name} is not supported, we currently support {ADAPTERS}")
                sender.send(pb.InferenceResponse(error=error), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            words = [f"[{name[:1] or 'base'}]", *(f" {word}" for word in prompt.split())]
            is_cut = len(words) > given["max_tokens"]
            words = words[: given["max_tokens"]]
            for place, word in enumerate(words):
                is_last = place == len(words) - 1
                reason = ("length" if is_cut else "stop") if is_last else "None"
                tensors = [
                    pb.Tensor("text_output", np.array([word.encode()], dtype=np.object_)),
                    pb.Tensor("finish_reason", np.array([reason.encode()], dtype=np.object_)),
                    pb.Tensor("num_input_tokens", np.array([9], dtype=np.uint32)),
                    pb.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)),
                ]
                flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
                sender.send(pb.InferenceResponse(output_tensors=tensors), flags=flags)
