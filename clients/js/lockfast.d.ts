export interface ClientOptions {
  /** A token of the server: lf_… or a JWT. */
  token?: string;
  /** Seconds that locks stay held if this program dies. */
  ttl?: number;
  owner?: string;
  namespace?: string;
  fetch?: typeof fetch;
}

export interface AcquireOptions {
  /** Seconds; 0 does not wait. */
  timeout?: number;
  mode?: "exclusive" | "shared" | "update";
  priority?: number;
  signal?: AbortSignal;
}

export class LockfastError extends Error {}
export class AcquireTimeoutError extends LockfastError {
  ahead: string[];
}
export class LeaseLostError extends LockfastError {
  token: number;
}
export class StoreUnavailableError extends LockfastError {}
export class ProblemError extends LockfastError {
  status: number;
  kind: string;
}

export class Lease {
  readonly name: string;
  readonly n: number;
  /** The fencing token: greater than that of every earlier holder. */
  readonly token: number;
  /** Stop before this instant of performance.now(). */
  readonly deadline: number;
  readonly state: "held" | "uncertain" | "lost" | "released";
  /** Aborted when the lease is lost. */
  readonly lost: AbortSignal;
  check(): void;
  release(): Promise<void>;
}

export class Client {
  constructor(url: string, options?: ClientOptions);
  acquire(name: string, options?: AcquireOptions): Promise<Lease>;
  withLock<T>(name: string, options: AcquireOptions, work: (lease: Lease) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export function connect(url: string, options?: ClientOptions): Client;
