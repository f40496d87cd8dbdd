// The request of the playground as code for programs. The key in it is a placeholder.

/** Return a curl line. api: an entry of APIS; request: the body of a request. */
export function asCurl(origin, api, request) {
  const body = JSON.stringify(request, null, 2).replaceAll("'", "'\\''");
  return `curl ${origin}${api.path} \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${body}'`;
}

/** Return a program in Python. Fields that OpenAI's client does not know go into `extra_body`. */
export function asPython(origin, { python: { create, text, extra } }, request) {
  const isExtra = ([name]) => extra.includes(name);
  const given = Object.entries(request);
  const beyond = Object.fromEntries(given.filter(isExtra));
  const known = given.filter((field) => !isExtra(field));
  if (Object.keys(beyond).length) known.push(["extra_body", beyond]);
  const fields = known.map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["LORIKEET_API_KEY"])
answer = ${create}(
${fields.join("\n")}
)
print(${text})`;
}

/** Return a value as a Python literal. JSON's strings are Python's, except for surrogate halves, which JSON keeps. */
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
