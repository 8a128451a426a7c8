// What the scripts of this folder have in common.

/** Where the gateways are, without a slash at the end. */
export const gateways = setting('GATEWAYS', 'http://localhost:8081,http://localhost:8082')
  .split(',')
  .map((url) => url.trim().replace(/\/+$/, ''));

/**
 * The value of a response field, or '' where it is missing. Names of fields have
 * no case, but the keys of response.headers do.
 *
 * @param {import('k6/http').RefinedResponse<any>} response
 * @param {string} name
 */
export function field(response, name) {
  const key = Object.keys(response.headers).find((key) => key.toLowerCase() === name.toLowerCase());
  return key === undefined ? '' : (response.headers[key] ?? '');
}

/**
 * A setting of the environment.
 *
 * @param {string} name
 * @param {string} fallback
 */
export function setting(name, fallback) {
  return __ENV[name] || fallback;
}

/**
 * A setting that is a whole number of at least 1.
 *
 * @param {string} name
 * @param {number} fallback
 */
export function wholeNumber(name, fallback) {
  const text = setting(name, String(fallback));
  if (!/^[1-9]\d*$/.test(text)) {
    throw new Error(`${name} is "${text}": it must be a whole number of at least 1`);
  }
  return Number(text);
}
