// A client that is not ours: the TypeScript SDKs, driven once per era and transport.
//   node client.mjs ERA TARGET_JSON STEPS_JSON
// TARGET is {"url": …} or {"command": …, "args": […], "env": {…}}; each step is ["list"] or ["call", name, arguments]
// or ["read", uri]. Prints one JSON array with the results, in order. `sampling` and `elicitation` are answered.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [era, target, steps] = [process.argv[2], JSON.parse(process.argv[3]), JSON.parse(process.argv[4])];
const packages = createRequire(pathToFileURL(process.env.ACCEPT_HOME + '/js/package.json'));
const load = (name) => import(pathToFileURL(packages.resolve(name)));

async function open() {
  const info = { name: 'accept', version: '1' };
  const capabilities = { sampling: {}, elicitation: {} };
  if (era === 'modern') {
    const sdk = await load('@modelcontextprotocol/client');
    const stdio = await load('@modelcontextprotocol/client/stdio');
    const client = new sdk.Client(info, { capabilities, versionNegotiation: { mode: { pin: '2026-07-28' } } });
    const transport = target.url
      ? new sdk.StreamableHTTPClientTransport(new URL(target.url))
      : new stdio.StdioClientTransport({ ...target, stderr: 'ignore' });
    return [client, transport];
  }
  const sdk = await load('@modelcontextprotocol/sdk/client/index.js');
  const http = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const stdio = await load('@modelcontextprotocol/sdk/client/stdio.js');
  const client = new sdk.Client(info, { capabilities });
  const transport = target.url
    ? new http.StreamableHTTPClientTransport(new URL(target.url))
    : new stdio.StdioClientTransport({ ...target, stderr: 'ignore' });
  return [client, transport];
}

const [client, transport] = await open();
await client.connect(transport);
const results = [];
for (const [verb, first, second] of steps) {
  if (verb === 'list') results.push((await client.listTools()).tools.map((tool) => tool.name));
  else if (verb === 'call') results.push(await client.callTool({ name: first, arguments: second }));
  else if (verb === 'read') results.push(await client.readResource({ uri: first }));
}
await client.close();
console.log(JSON.stringify(results));
process.exit(0);
