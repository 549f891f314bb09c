// A certified OpenID Connect provider on loopback, for tests. It prints its issuer, reads the redirect
// URI of its client as a line, and serves until its input ends. Anybody can sign in, with any password.
import { createServer } from "node:http";
import { argv, env, exit, stdin, stdout } from "node:process";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , folder] = argv;
const { Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const lines = createInterface({ input: stdin });
lines.once("line", (redirect) => {
  const provider = new Provider(issuer, {
    clients: [{ client_id: env.CLIENT_ID, client_secret: env.CLIENT_SECRET, redirect_uris: [redirect] }],
    claims: { openid: ["sub"], email: ["email", "email_verified"] },
    cookies: { keys: [env.CLIENT_SECRET] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@Example.com`, email_verified: id !== "unverified" }),
    }),
  });
  server.on("request", provider.callback());
  stdout.write("ready\n");
});
lines.once("close", () => exit(0));
stdout.write(`${issuer}\n`);
