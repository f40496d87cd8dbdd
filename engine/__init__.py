"""The engine: one process per base model that turns token ids into token ids.

Knows nothing about HTTP, text, money or SQL, and of a tenant only an opaque id and a weight.

    protocol        the messages between gateways and engines
    server          the thread that talks to gateways; mailbox: the way to the stepping thread; usage_book: usage
    core            the thread that steps; compilations: requests that wait for a grammar; statistics: counts of steps
    sequence        the data between scheduler and runner
    scheduling      the tokens that the next step computes
    model_runner    a plan computed: hidden states, then tokens, log-probabilities and embeddings
    cpu, cuda       a plan to hidden states, on each kind of device; device, transfers: the common interface
    models          the forward pass, weights, positions, states
    lora            adapters: tiers and slots
    sampling        from hidden states to tokens, log-probabilities, embeddings
    grammar         structured output
    config, setup   an engine's settings, and its parts wired together; hardware: the machine
    prepare         base models made ready
    fake            an engine without a model, for the gateway's tests
    bench           measurements of its speed

- Step. `Scheduler.schedule` gives a `Plan` of chunks under one token budget: running decodes first, the rest to
  prefill. The device's path makes tensors of it, `Decoder.forward` computes them and returns the rows that
  `sampling.outputs` wants. Logits are made of those alone that are sampled or scored, and `Sampler` chooses.
  `Scheduler.commit` takes one `ChunkResult` per chunk. Commands, loaded adapters and compiled grammars are looked at
  before each plan, and before results are taken.
- One step ahead. If the device feeds tokens from step to step (`DevicePath.feeds`: a GPU), the next step is planned and
  launched while the last one is computed, and only then are that one's results waited for, so what the host does
  between two steps is hidden. A launch moves its sequences on (`num_computed`, `num_pending`), the results make pending
  tokens known. A sequence that ends by such a token has had a row computed in vain; one that ends by length has not. No
  sequence is preempted for a step ahead, and no step is planned ahead while a sequence that goes on has a token pending
  and a grammar or penalties, or drafts are on. The host waits for the device to be halfway through before it plans, so
  that requests that arrive in that half join the next step. A step that is launched operation by operation is launched
  after the results of the one before it are sent. A failed step shares nothing through the prefix cache: blocks are
  registered with their results.
- Pauses. If the device's steps can pause (`DevicePath.begin`: the native kernels), one of batch work alone is computed
  in parts. For a command that interactive requests may wait for, the mailbox asks that step to pause; the requests are
  computed by steps of their own, and the paused step goes on between them. It has memory of its own on the device, and
  its sequences keep their blocks.
- Devices. `setup` decides once. A decoder knows no device: how rows attend and what adapters add come with its batch
  (`StepAttention`, `StepLora`), norms and the activation with its weights.
- Threads. Steps run in the main thread, which also loaded the model; the server has a thread of its own, the loader
  computes with one. No other thread may compute in parallel: with more OpenMP threads than processors, libgomp's
  workers sleep between operations, and a step takes twice as long.
- Faults. A fault of a request or an adapter ends that request alone: ids outside the vocabulary are refused, weights
  that overflow leave no trace in neighbors (cache rows are finite, masks replace rather than add), logits that are no
  numbers end their sequence. A step that fails ends its requests. A fault outside a step or beside it, and one after
  which a GPU computes nothing any more (`faults`), ends the process, and the supervisor starts a new one.
- Bounds. More choices than the configured running and waiting ones are refused with `queue_full` and the time after
  which the choices in the engine will have finished. Beyond what may run, a tenant holds at most as many places as it
  leaves free: alone half of the queue, two that flood it a third each.
"""
