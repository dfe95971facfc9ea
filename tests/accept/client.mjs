// A client that is not ours: the TypeScript SDKs, driven once per era and transport.
//   node client.mjs ERA TARGET_JSON STEPS_JSON
// TARGET is {"url": …, "headers": {…}} or {"command": …, "args": […], "env": {…}}; with "silent": true the client can be asked
// nothing. Each step is ["list"] or ["call", name, arguments]
// or ["read", uri], or ["watch", name, arguments, answer]: a call whose progress is listened to, and whose questions are
// answered with `answer`; gives {result, progress, asked}; or ["task", name, arguments], a call as a task of the 2025
// protocol; gives the kinds of what was heard of it, and {result}. Prints one JSON array with the results, in order.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [era, target, steps] = [process.argv[2], JSON.parse(process.argv[3]), JSON.parse(process.argv[4])];
const packages = createRequire(pathToFileURL(process.env.ACCEPT_HOME + '/js/package.json'));
const load = (name) => import(pathToFileURL(packages.resolve(name)));

async function open() {
  const info = { name: 'accept', version: '1' };
  const capabilities = target.silent ? {} : { sampling: {}, elicitation: {} };
  if (era === 'modern') {
    const sdk = await load('@modelcontextprotocol/client');
    const stdio = await load('@modelcontextprotocol/client/stdio');
    const client = new sdk.Client(info, { capabilities, versionNegotiation: { mode: { pin: '2026-07-28' } } });
    const transport = target.url
      ? new sdk.StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers: target.headers ?? {} } })
      : new stdio.StdioClientTransport({ ...target, stderr: 'ignore' });
    return [client, transport];
  }
  const sdk = await load('@modelcontextprotocol/sdk/client/index.js');
  const http = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const stdio = await load('@modelcontextprotocol/sdk/client/stdio.js');
  const client = new sdk.Client(info, { capabilities });
  const transport = target.url
    ? new http.StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers: target.headers ?? {} } })
    : new stdio.StdioClientTransport({ ...target, stderr: 'ignore' });
  return [client, transport];
}

const [client, transport] = await open();
const asked = [];
let answer = null;
const elicit = async (request) => {
  asked.push(request.params.message);
  return answer ? { action: 'accept', content: answer } : { action: 'decline' };
};
if (target.silent) ;
else if (era === 'modern') client.setRequestHandler('elicitation/create', elicit);
else client.setRequestHandler((await load('@modelcontextprotocol/sdk/types.js')).ElicitRequestSchema, elicit);

async function watch(name, args, content) {
  answer = content;
  asked.length = 0;
  const progress = [];
  const options = { onprogress: (heard) => progress.push(heard.message ?? '') };
  const call = { name, arguments: args };
  const result = await (era === 'modern' ? client.callTool(call, options) : client.callTool(call, undefined, options));
  return { result, progress, asked: [...asked] };
}

async function asTask(name, args) {
  const heard = [];
  for await (const message of client.experimental.tasks.callToolStream({ name, arguments: args }, undefined, { task: { ttl: 60000 } })) {
    if (message.type === 'error') throw message.error;
    heard.push(message.type);
    if (message.type === 'result') return { heard, result: message.result };
  }
  throw new Error('the task ended without a result');
}

await client.connect(transport);
const results = [];
for (const [verb, first, second, third] of steps) {
  if (verb === 'list') results.push((await client.listTools()).tools.map((tool) => tool.name));
  else if (verb === 'call') results.push(await client.callTool({ name: first, arguments: second }));
  else if (verb === 'task') results.push(await asTask(first, second));
  else if (verb === 'watch') results.push(await watch(first, second, third));
  else if (verb === 'read') results.push(await client.readResource({ uri: first }));
}
await client.close();
console.log(JSON.stringify(results));
process.exit(0);
