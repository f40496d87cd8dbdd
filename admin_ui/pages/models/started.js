// The servers that agents start, of Lorikeet and of other makers, with the hints on each server's settings.

const PATHS = "the absolute path of a folder or a .gguf file on the hosts";
const HUB = "A repository of the Hugging Face hub such as Qwen/Qwen3-0.6B";
const UNSET = "What is not named here is as on the hosts.";

export const STARTED = [
  {
    engine: "lorikeet",
    title: "Lorikeet's own",
    modelHint: `${HUB}, ${PATHS}, demo or demo-random.`,
    settingsHint: `One NAME=VALUE in a line, such as max_model_len=8192. ${UNSET}`,
  },
  {
    engine: "llamacpp",
    title: "llama.cpp's server, which agents start",
    hint: "The program llama-server, or the Python package xllamacpp, has to be on a host.",
    modelHint: "The absolute path of a .gguf file on the hosts, or demo.",
    settingsHint: "One NAME=VALUE in a line, such as num_slots=8 or max_model_len=4096.",
    consequence: "Adapters that tenants have by then answer as well; each later one waits for a start of its servers.",
  },
  {
    engine: "vllm",
    title: "vLLM, which agents start",
    hint: "The program vllm has to be on a host.",
    modelHint: `${HUB}, ${PATHS}.`,
    settingsHint: "One NAME=VALUE in a line, such as num_slots=32, max_adapters=16 or gpu_memory_fraction=0.8.",
    consequence: "Adapters of the model answer as well, and are loaded when they are asked for.",
  },
];

/** Return the entry of STARTED for a pool's engine; Lorikeet's own if agents do not start that engine. */
export const startedOf = ({ engine }) => STARTED.find((each) => each.engine === engine) ?? STARTED[0];

/** Return whether the servers of a pool load adapters only when they start. */
export const takesAdaptersAtStart = ({ engine, is_managed: isManaged }) => engine === "llamacpp" && isManaged;
