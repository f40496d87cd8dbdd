// A request as a program would make it. The key is a placeholder: it never comes into a text.

/** request: the body of a chat completion. */
export function asCurl(origin, request) {
  const body = JSON.stringify(request, null, 2).replaceAll("'", "'\\''");
  return `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${body}'`;
}

export function asPython(origin, request) {
  const fields = Object.entries(request).map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["LORIKEET_API_KEY"])
answer = client.chat.completions.create(
${fields.join("\n")}
)
print(answer.choices[0].message.content)`;
}

/** A Python literal. JSON's strings are Python's, but for the halves of characters beyond the basic plane, which it keeps. */
function literal(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => inner + literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join(",\n")},\n${indent}${close}` : open + close;
}
