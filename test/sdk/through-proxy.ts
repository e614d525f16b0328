/** The `fetch` that an SDK is given to send its calls in the form `/proxy?target=`. */
export const throughProxy =
  (gatewayUrl: string): typeof fetch =>
  (input, init) => {
    const url = input instanceof Request ? input.url : input.toString();
    return fetch(`${gatewayUrl}/proxy?target=${encodeURIComponent(url)}`, init);
  };
