// A real OpenID Connect provider on loopback, for tests: `node provider.mjs '{"port":..., "redirect":..., "key":{...}}'`.
// Whoever logs in by its form is whom they say they are; what is told of them stands in PEOPLE. It prints "ready" once it listens.
import { Provider } from "oidc-provider";

const asked = JSON.parse(process.argv[2]);
const PEOPLE = {
  ada: { email: "ada@example.com", email_verified: true, groups: ["ml-team"] },
  bob: { email: "bob@example.com", email_verified: true, groups: [] },
  mallory: { email: "ada@example.com", email_verified: false, groups: ["ml-team"] },
};

const provider = new Provider(`http://127.0.0.1:${asked.port}`, {
  clients: [
    { client_id: "fallow", client_secret: asked.secret, redirect_uris: [asked.redirect], grant_types: ["authorization_code"] },
    { client_id: "other", client_secret: "other", redirect_uris: [asked.redirect], grant_types: ["authorization_code"] },
  ],
  jwks: { keys: [asked.key] },
  cookies: { keys: ["only for tests"] },
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  conformIdTokenClaims: false, // claims stand in the ID token, as Keycloak and Dex have it
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...PEOPLE[id] }) }),
  // Nobody is asked whether the dashboard may know who they are.
  async loadExistingGrant(ctx) {
    const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope("openid email groups");
    await grant.save();
    return grant;
  },
});
provider.listen(asked.port, "127.0.0.1", () => console.log("ready"));
