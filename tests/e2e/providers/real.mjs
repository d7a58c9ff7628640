// A real OpenID provider: node real.mjs FOLDER PORT REDIRECT
import { createRequire } from 'node:module';
import { generateKeyPairSync } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const [folder, port, redirect] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));
const key = (type, options, more) => ({ ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }), use: 'sig', ...more });
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    { client_id: 'met', client_secret: 'a-secret-of-the-client:+%', redirect_uris: [redirect] },
    { client_id: 'met-ec', token_endpoint_auth_method: 'none', redirect_uris: [redirect], id_token_signed_response_alg: 'ES256' },
  ],
  jwks: { keys: [key('rsa', { modulusLength: 2048 }, { kid: 'rsa-1', alg: 'RS256' }), key('ec', { namedCurve: 'P-256' }, { kid: 'ec-1', alg: 'ES256' })] },
  claims: { profile: ['preferred_username'] },
  conformIdTokenClaims: false,
  pkce: { required: () => true, methods: ['S256'] },
  cookies: { keys: ['test'] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id }) }),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
