// A browser without a locale may report a language such as "en-US@posix", for which Intl throws.
// uPlot passes it to Intl when it is loaded, so this module has to be imported before uPlot.

try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
}
