"""The page at /docs: the OpenAPI document made readable, with a box to try each operation. One file, nothing fetched
from elsewhere; the page reads /openapi.json of the broker that served it."""

from __future__ import annotations

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lanner: REST</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #b4541a; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
  h1 { margin: 0; } h2 { margin: 2rem 0 .5rem; text-transform: capitalize; }
  details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
  summary { cursor: pointer; padding: .5rem .8rem; display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap; }
  summary .what { margin-left: auto; opacity: .75; }
  .inside { padding: 0 .8rem .8rem; border-top: 1px solid var(--line); }
  .method { font-weight: 700; width: 4.2rem; color: var(--accent); }
  code, pre, textarea, input { font: 13px/1.45 ui-monospace, monospace; }
  pre, textarea { background: var(--soft); border: 1px solid var(--line); border-radius: 4px; padding: .5rem;
    overflow: auto; max-height: 24rem; }
  textarea { width: 100%; min-height: 7rem; box-sizing: border-box; }
  input { padding: .25rem .4rem; border: 1px solid var(--line); border-radius: 4px; width: 16rem; max-width: 100%; }
  table { border-collapse: collapse; width: 100%; } td { padding: .2rem .6rem .2rem 0; vertical-align: top; }
  button { padding: .35rem 1rem; border-radius: 4px; border: 1px solid var(--accent); background: var(--accent);
    color: #fff; cursor: pointer; }
  .required::after { content: " *"; color: var(--accent); }
  .status { font-weight: 700; margin-left: .8rem; }
</style>
</head>
<body>
<h1>Lanner</h1>
<p id="about">Reading <a href="/openapi.json">/openapi.json</a> …</p>
<main id="operations"></main>
<script>
"use strict";
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
let schemas = {};
const resolve = (schema) => schema && schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema || {};
const sample = (given, depth = 0) => {
  const schema = resolve(given);
  if ("default" in schema) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return sample(schema.anyOf[0], depth);
  if (schema.type === "object") {
    const result = {};
    if (depth > 4) return result;
    for (const name of schema.required || []) result[name] = sample((schema.properties || {})[name], depth + 1);
    return result;
  }
  if (schema.type === "array") return [sample(schema.items, depth + 1)];
  if (schema.type === "integer" || schema.type === "number") return schema.minimum || 0;
  if (schema.type === "boolean") return false;
  return schema.type === "string" ? "text" : null;
};
const describe = (given, depth = 0) => {
  const schema = resolve(given);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map((each) => describe(each, depth)).join(" | ");
  if (schema.type === "array") return `[${describe(schema.items, depth)}]`;
  if (schema.type === "object" && schema.properties && depth < 4) {
    const pad = "  ".repeat(depth + 1);
    const required = new Set(schema.required || []);
    const lines = Object.entries(schema.properties).map(([name, value]) =>
      `${pad}${name}${required.has(name) ? "" : "?"}: ${describe(value, depth + 1)}`
      + (value.description ? `   // ${value.description}` : ""));
    return `{\\n${lines.join("\\n")}\\n${"  ".repeat(depth)}}`;
  }
  let text = schema.type || "any";
  if ("minimum" in schema || "maximum" in schema) text += ` ${schema.minimum ?? ""}..${schema.maximum ?? ""}`;
  if ("default" in schema) text += ` = ${JSON.stringify(schema.default)}`;
  return text;
};
const tryBox = (method, path, operation) => {
  const form = make("form");
  const inputs = [];
  const table = make("table");
  for (const parameter of operation.parameters || []) {
    const input = make("input", { placeholder: describe(parameter.schema), title: parameter.description || "" });
    inputs.push([parameter, input]);
    table.append(make("tr", {}, make("td", {}, make("code", { textContent: parameter.name,
      className: parameter.required ? "required" : "" }), ` (${parameter.in})`), make("td", {}, input)));
  }
  form.append(table);
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  let body = null;
  if (content) {
    body = make("textarea", { value: JSON.stringify(sample(content.schema), null, 2), spellcheck: false });
    form.append(make("p", {}, body), make("details", {}, make("summary", { textContent: "its shape" }),
      make("pre", { textContent: describe(content.schema) })));
  }
  const status = make("span", { className: "status" });
  const output = make("pre", { hidden: true });
  form.append(make("p", {}, make("button", { textContent: "Try it" }), status), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    const headers = body ? { "content-type": "application/json" } : {};
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (!input.value) continue;
      else if (parameter.in === "query") query.set(parameter.name, input.value);
      else headers[parameter.name] = input.value;
    }
    if (`${query}`) target += `?${query}`;
    status.textContent = "…";
    try {
      const began = performance.now();
      const reply = await fetch(target, { method, headers, body: body ? body.value : undefined });
      const text = await reply.text();
      status.textContent = `${reply.status} in ${Math.round(performance.now() - began)} ms`;
      let shown = text;
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch (_) { /* not JSON: as it is */ }
      output.textContent = shown;
      output.hidden = false;
    } catch (error) {
      status.textContent = String(error);
    }
  });
  return form;
};
const show = (apiDocument) => {
  schemas = apiDocument.components.schemas;
  document.getElementById("about").replaceChildren(`${apiDocument.info.description} Version `
    + `${apiDocument.info.version}. The same as `, make("a", { href: "/openapi.json", textContent: "OpenAPI" }), ".");
  const sections = new Map();
  for (const [path, methods] of Object.entries(apiDocument.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) sections.set(tag, make("section", {}, make("h2", { textContent: tag })));
      const responses = make("table");
      for (const [code, response] of Object.entries(operation.responses)) {
        const content = response.content && Object.values(response.content)[0];
        const cell = make("td", { textContent: response.description });
        if (content && code < 300) cell.append(make("pre", { textContent: describe(content.schema) }));
        responses.append(make("tr", {}, make("td", {}, make("code", { textContent: code })), cell));
      }
      const inside = make("div", { className: "inside" });
      const box = make("details", { id: operation.operationId }, make("summary", {},
        make("span", { className: "method", textContent: method.toUpperCase() }), make("code", { textContent: path }),
        make("span", { className: "what", textContent: operation.summary })), inside);
      if (operation.description) inside.append(make("p", { textContent: operation.description }));
      inside.append(tryBox(method.toUpperCase(), path, operation), make("h4", { textContent: "Replies" }), responses);
      sections.get(tag).append(box);
    }
  }
  document.getElementById("operations").replaceChildren(...sections.values());
};
fetch("/openapi.json").then((reply) => reply.json()).then(show).catch((error) => {
  document.getElementById("about").textContent = `The document could not be read: ${error}`;
});
</script>
</body>
</html>
"""
