"""A model of Triton with the tensors of TensorRT-LLM's ensemble: its reply is its adapter's name and the prompt."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb

TASKS = {int(name * 15, 16): name for name in "12"}


class TritonPythonModel:
    def execute(self, requests):  # type: ignore[no-untyped-def]
        for request in requests:
            sender = request.get_response_sender()
            prompt = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            max_tokens = int(pb.get_input_tensor_by_name(request, "max_tokens").as_numpy()[0])
            given = pb.get_input_tensor_by_name(request, "lora_task_id")
            task = int(given.as_numpy()[0]) if given is not None else 0
            if task and task not in TASKS:
                error = pb.TritonError(f"LoRA task {task} not found in cache. Please send LoRA weights with request")
                sender.send(pb.InferenceResponse(error=error), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            words = [f"[{TASKS.get(task, 'base')}]", *(f" {word}" for word in prompt.split())][:max_tokens]
            for word in words:
                tensor = pb.Tensor("text_output", np.array([word.encode()], dtype=np.object_))
                sender.send(pb.InferenceResponse(output_tensors=[tensor]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
