// The two APIs that the playground speaks, with the same functions: `body` makes the request that continues a
// conversation, `read` reads an event of its stream. Knows no page.

/** Return turns as messages, which are alike in both APIs. */
const messagesOf = (turns) => turns.map(({ role, content }) => ({ role, content }));

const chat = {
  title: "Chat completions",
  path: "/v1/chat/completions",
  streaming: { stream: true, stream_options: { include_usage: true } },
  python: { create: "client.chat.completions.create", text: "answer.choices[0].message.content", extra: [] },

  /** Return the body of a request. turns: the conversation, the newest message last. */
  body({ model, turns, settings: { system, numbers, stop, schema } }) {
    return {
      model,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messagesOf(turns)],
      ...numbers,
      ...(stop && { stop }),
      ...(schema && {
        response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
      }),
    };
  },

  /** Return {text, reasoning, finishReason, usage} of an event, as far as the event has them. */
  read({ choices: [choice], usage }) {
    return {
      text: choice?.delta.content,
      reasoning: choice?.delta.reasoning_content,
      finishReason: choice?.finish_reason,
      usage: usage && { input: usage.prompt_tokens, output: usage.completion_tokens },
    };
  },
};

const responses = {
  title: "Responses",
  path: "/v1/responses",
  streaming: { stream: true },
  python: { create: "client.responses.create", text: "answer.output_text", extra: ["seed", "stop"] },

  /**
   * Return the body of a request. The conversation continues from the last stored answer by its id; only later turns
   * are sent.
   */
  body({
    model,
    turns,
    settings: {
      system,
      numbers: { max_tokens: maxTokens, ...numbers },
      stop,
      schema,
      store,
    },
  }) {
    const last = store ? turns.findLastIndex(({ result }) => result?.storedId) : -1;
    return {
      model,
      ...(system && { instructions: system }),
      input: messagesOf(turns.slice(last + 1)),
      ...(last >= 0 && { previous_response_id: turns[last].result.storedId }),
      store,
      ...numbers,
      ...(maxTokens !== undefined && { max_output_tokens: maxTokens }),
      ...(stop && { stop }),
      ...(schema && { text: { format: { type: "json_schema", name: "answer", schema, strict: true } } }),
    };
  },

  read({ type, delta, response }) {
    if (type === "response.output_text.delta") return { text: delta };
    if (type === "response.reasoning_text.delta") return { reasoning: delta };
    if (!response?.usage) return {};
    const { id, status, usage, incomplete_details: cut, store } = response;
    return {
      finishReason: cut?.reason ?? status,
      storedId: store ? id : undefined,
      usage: { input: usage.input_tokens, output: usage.output_tokens },
    };
  },
};

/** The APIs, by their names in the page's URL. */
export const APIS = { chat, responses };
