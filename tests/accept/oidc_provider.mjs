// The npm `oidc-provider` (OpenID-certified, not ours) as authorization server for an MCP server at the URL given as argument.
// Prints its origin. One confidential client for client credentials; clients of people register themselves.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const require = createRequire(path.join(process.env.JS_HOME, "package.json"));
const { default: Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);

const resource = process.argv[2];
const server = createServer((request, response) => handle(request, response));
let handle = (_, response) => response.writeHead(503).end();
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "robot",
      client_secret: process.env.ROBOT_SECRET,
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  features: {
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_context, indicator) => {
        if (indicator !== resource) throw new Error("unknown resource");
        return { scope: "read write", audience: indicator, accessTokenFormat: "jwt", accessTokenTTL: 3600 };
      },
      useGrantedResource: () => true,
    },
  },
  scopes: ["openid", "offline_access", "read", "write"],
  pkce: { required: () => true },
  rotateRefreshToken: () => true,
  cookies: { keys: ["only for tests"] },
});
handle = provider.callback();
console.log(issuer);
