// Where the reader is: `#/n/NAMESPACE/VIEW/THING?FIELD=VALUE`. Each part is encoded, because names contain slashes.

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody has written the address by hand
  }
};

/** The place that the address names. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, namespace, view = "overview", thing = ""] = path.split("/").map(decoded);
  const fields = Object.fromEntries(new URLSearchParams(query));
  return kind === "n" && namespace ? { namespace, view, thing, fields } : { namespace: null, view: "", thing: "", fields };
}

/** The address of a view. */
export function at(namespace, view, thing, fields) {
  const path = ["n", namespace, view, thing].filter((part) => part !== undefined && part !== null && part !== "");
  const given = Object.entries(fields || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${query ? `?${query}` : ""}`;
}

export function go(...where) {
  location.hash = at(...where);
}
