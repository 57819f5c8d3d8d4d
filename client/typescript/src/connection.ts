// SPDX-License-Identifier: Apache-2.0
// A connection: target, TLS, retries, keepalive, and calls as promises and async iterators. The
// settings equal those of the C++ and Python clients.
import { Readable } from 'node:stream';

import * as grpc from '@grpc/grpc-js';

import * as check from './checks';
import { Code, fromStatus, leavesReplica, RivuletError } from './errors';
import type { CallMetadata, CallOptions } from './options';

/** Certificates of the server and of this client: PEM, as text or bytes. */
export interface TlsOptions {
  /** CA certificates that may have signed the server's certificate; absent: the roots of Node.js. */
  ca?: string | Uint8Array;
  /** This client's certificate and key, for mutual TLS: both or neither. */
  cert?: string | Uint8Array;
  key?: string | Uint8Array;
  /** Name expected in the certificate, if it is not the target's host. */
  serverName?: string;
}

/** Options of a RivuletClient. */
export interface ClientOptions {
  /** Absent: plaintext, for loopback and for networks that are protected by other means. */
  tls?: TlsOptions;
  /**
   * Sent with every call as "authorization: Bearer ...": an API key of the server, or a token for a
   * proxy. Without `tls` everybody on the network path can read it.
   */
  bearerToken?: string;
  /** Sent with every call. */
  metadata?: CallMetadata;
  /** The tenant of the calls, sent as "rivulet-tenant". Leave it out if a proxy sets it. */
  tenant?: string;
  /**
   * Attempts of a call that is UNAVAILABLE, 1 to 5; absent: 4, with waits of 0.1 s to 2 s between
   * them. For generate(): the attempts before the first part. Calls that create a session are not
   * tried again, because they could create two.
   */
  maxAttempts?: number;
  /** Calls wait until the server is reachable, up to their timeoutMs, instead of failing. */
  waitForReady?: boolean;
  /** Largest message accepted from the server; absent: 256 MiB. */
  maxReceiveBytes?: number;
}

const OPTIONS = [
  'tls',
  'bearerToken',
  'metadata',
  'tenant',
  'maxAttempts',
  'waitForReady',
  'maxReceiveBytes',
];

const LONGEST_TIMER_MS = 2 ** 31 - 1; // Node.js turns a longer time into 1 ms

// Names that gRPC resolves itself. Any other target must be HOST:PORT: gRPC would use port 443 for
// a host alone.
const SCHEMES = ['dns:', 'ipv4:', 'ipv6:', 'unix:', 'unix-abstract:'];

function checkTarget(target: unknown): string {
  const name = check.text('target', target);
  if (SCHEMES.some((scheme) => name.startsWith(scheme))) return name;
  const form = 'target: must be HOST:PORT, for example localhost:50051 or [::1]:50051';
  if (name.includes('://')) {
    const tls = name.startsWith('https:') ? ', and the option tls: {} for TLS' : '';
    throw new RangeError(`${form}${tls}; got the URL '${name}'`);
  }
  const [, host, port] = /^(.*):([0-9]{1,5})$/.exec(name) ?? [];
  if (!host || (host.includes(':') && !/^\[.*\]$/.test(host))) throw new RangeError(`${form}; got '${name}'`);
  if (Number(port) < 1 || Number(port) > 65535)
    throw new RangeError(`${form}, with a port from 1 to 65535; got '${name}'`);
  return name;
}

function pem(name: string, value: string | Uint8Array | undefined): Buffer | null {
  if (value === undefined) return null;
  if (typeof value !== 'string' && !(value instanceof Uint8Array))
    throw new TypeError(`${name}: must be PEM as a string or bytes`);
  const bytes = Buffer.from(value);
  if (!bytes.includes('-----BEGIN '))
    throw new RangeError(`${name}: must be PEM, with a line that begins with -----BEGIN`);
  return bytes;
}

function credentials(tls: TlsOptions | undefined): grpc.ChannelCredentials {
  if (tls === undefined) return grpc.credentials.createInsecure();
  const { ca, cert, key } = check.options('tls', tls, ['ca', 'cert', 'key', 'serverName']);
  if ((cert === undefined) !== (key === undefined))
    throw new TypeError('tls: cert and key must both be given, or neither');
  const [roots, own, secret] = [pem('tls.ca', ca), pem('tls.cert', cert), pem('tls.key', key)];
  try {
    return grpc.credentials.createSsl(roots, secret, own);
  } catch (cause) {
    const said = cause instanceof Error ? cause.message : String(cause);
    throw new RangeError(`tls: ca, cert or key is not valid: ${said}`, { cause });
  }
}

// A session's calls name its position, so that a repetition has no further effect.
const REPEATABLE = [
  'Append',
  'RewindSession',
  'SnapshotSession',
  'CloseSession',
  'GetSession',
  'ListSessions',
];

function serviceConfig(maxAttempts: number): string {
  if (maxAttempts === 1) return '{}';
  const names = REPEATABLE.map((method) => ({ service: 'rivulet.v1.SessionService', method }));
  const retryPolicy = {
    maxAttempts,
    initialBackoff: '0.1s',
    maxBackoff: '2s',
    backoffMultiplier: 2,
    retryableStatusCodes: ['UNAVAILABLE'],
  };
  return JSON.stringify({
    methodConfig: [
      { name: [{ service: 'rivulet.v1.InferenceService' }, ...names], retryPolicy },
      // Generate has no policy here, because RepeatedReply repeats it; the longer name wins.
      { name: [{ service: 'rivulet.v1.InferenceService', method: 'Generate' }] },
    ],
    retryThrottling: { maxTokens: 10, tokenRatio: 0.1 },
  });
}

/** A method of a generated service. */
export interface Method<Request, Reply> {
  readonly path: string;
  readonly requestSerialize: (value: Request) => Buffer;
  readonly responseDeserialize: (bytes: Buffer) => Reply;
}

/** A call that can be ended early. */
export interface Cancellable {
  /** Does nothing if the call has ended. */
  cancel(): void;
}

/** The messages of a running reply. */
export interface Messages<Reply> extends AsyncIterable<Reply>, Cancellable {
  /** The cookies that a balancer set, once a message has come; or "". */
  cookie(): string;
}

/** A reply, and its cookies (or ""), by which a balancer finds the session's replica. */
export interface Answer<Reply> {
  reply: Reply;
  cookie: string;
}

function cookieOf(metadata: grpc.Metadata | undefined): string {
  return (metadata?.get('set-cookie') ?? []).map((pair) => String(pair).split(';')[0]?.trim()).join('; ');
}

const asItIs = (message: Buffer): Buffer => message;

/** The deadline, as Date.now(), of a call that begins now. */
export function deadlineOf({ timeoutMs }: CallOptions): number {
  return timeoutMs === undefined ? Infinity : Date.now() + timeoutMs;
}

export class Connection {
  readonly maxAttempts: number;
  /** Limit of a request, from GetModel; 0: not known. */
  maxMessageBytes = 0;
  readonly #client: grpc.Client;
  readonly #metadata: [string, string | Uint8Array][];
  readonly #waitForReady: boolean;
  readonly #running = new Set<Cancellable>();
  #closed = false;

  /** Errors: TypeError, RangeError. */
  constructor(target: string, given?: ClientOptions) {
    const options = check.options('RivuletClient', given, OPTIONS);
    this.maxAttempts = check.integer('maxAttempts', options.maxAttempts ?? 4, 1, 5);
    this.#metadata = check.metadata(options.metadata);
    this.#waitForReady = check.boolean('waitForReady', options.waitForReady ?? false);
    if (options.tenant !== undefined) {
      const tenant = check.text('tenant', options.tenant);
      if (!/^[!-~]+$/.test(tenant))
        throw new RangeError(`tenant: must be printable ASCII without spaces; got '${tenant}'`);
      this.#metadata.push(['rivulet-tenant', tenant]);
    }
    if (options.bearerToken !== undefined) {
      // The value is a secret, so the error does not state it.
      if (!/^[!-~]+$/.test(check.text('bearerToken', options.bearerToken))) {
        throw new RangeError('bearerToken: must be printable ASCII without spaces');
      }
      this.#metadata.push(['authorization', `Bearer ${options.bearerToken}`]);
    }
    const serverName = options.tls?.serverName;
    this.#client = new grpc.Client(checkTarget(target), credentials(options.tls), {
      'grpc.service_config': serviceConfig(this.maxAttempts),
      'grpc.max_receive_message_length': check.integer(
        'maxReceiveBytes',
        options.maxReceiveBytes ?? 256 << 20,
        1,
        2 ** 31 - 1,
      ),
      'grpc.primary_user_agent': 'rivulet-typescript/0.1',
      // A connection that failed is tried again within a call's retries; gRPC's own first wait of 1
      // s would outlast them all.
      'grpc.initial_reconnect_backoff_ms': 100,
      // A peer that has vanished is noticed within 80 s while a call runs; the server allows a ping
      // every 30 s.
      'grpc.keepalive_time_ms': 60_000,
      'grpc.keepalive_timeout_ms': 20_000,
      ...(serverName !== undefined && {
        'grpc.ssl_target_name_override': check.text('tls.serverName', serverName),
      }),
    });
  }

  /** Ends running calls with CANCELLED. Later calls throw an Error. */
  close(): void {
    this.#closed = true;
    for (const call of this.#running) call.cancel();
    this.#client.close();
  }

  /** The reply of a unary method. */
  async unary<Q, R>(
    method: Method<Q, R>,
    request: Q,
    options: CallOptions,
    cookie = '',
    deadline = deadlineOf(options),
  ): Promise<Answer<R>> {
    const { path, responseDeserialize } = method;
    const message = this.#serialized(method, request);
    const { metadata, callOptions } = this.#arguments(options, cookie, deadline);
    return this.#answer<R>(options, (done) =>
      this.#client.makeUnaryRequest(
        path,
        asItIs,
        responseDeserialize,
        message,
        metadata,
        callOptions,
        done,
      ),
    );
  }

  /**
   * A call on an existing session, to the replica to which `cookie` leads. If this replica drains
   * or the session has moved, the call is made once more without the cookie; if `repeats`, also if
   * the call is lost. If the second replica does not know the session, the first error is thrown.
   * The returned cookie leads the next call to the session.
   */
  async onSession<R>(
    options: CallOptions,
    cookie: string,
    repeats: boolean,
    make: (cookie: string, deadline: number) => Promise<Answer<R>>,
  ): Promise<Answer<R>> {
    const deadline = deadlineOf(options);
    const found = (answer: Answer<R>): Answer<R> => ({ ...answer, cookie: answer.cookie || cookie });
    try {
      return found(await make(cookie, deadline));
    } catch (error) {
      if (!(error instanceof RivuletError)) throw error;
      const lost = repeats && error.code === Code.UNAVAILABLE;
      const leaves = cookie !== '' && (lost || leavesReplica(error));
      if (!leaves && error.reason !== 'SESSION_MOVED') throw error;
      try {
        return found(await make('', deadline));
      } catch (elsewhere) {
        const unknown = elsewhere instanceof RivuletError && elsewhere.reason === 'SESSION_NOT_FOUND';
        throw unknown ? error : elsewhere;
      }
    }
  }

  /** The reply of a client-streaming method. `requests` is read as fast as it can be sent. */
  async upload<Q, R>(method: Method<Q, R>, requests: Iterable<Q>, options: CallOptions): Promise<Answer<R>> {
    const { path, requestSerialize, responseDeserialize } = method;
    const { metadata, callOptions } = this.#arguments(options, '');
    return this.#answer<R>(options, (done) => {
      const call = this.#client.makeClientStreamRequest(
        path,
        requestSerialize,
        responseDeserialize,
        metadata,
        callOptions,
        done,
      );
      // The types of pipe() allow only bytes; the call takes objects.
      Readable.from(requests).pipe(call as unknown as NodeJS.WritableStream);
      return call;
    });
  }

  /** Errors: RivuletError (MESSAGE_TOO_LARGE). */
  #serialized<Q, R>(method: Method<Q, R>, request: Q): Buffer {
    const message = method.requestSerialize(request);
    if (this.maxMessageBytes === 0 || message.length <= this.maxMessageBytes) return message;
    throw new RivuletError(
      Code.INVALID_ARGUMENT,
      `a request of ${message.length} bytes is more than the server takes at once, which is ` +
        `${this.maxMessageBytes} (its setting max-message-mib)`,
      { reason: 'MESSAGE_TOO_LARGE' },
    );
  }

  #answer<R>(options: CallOptions, begin: (done: grpc.requestCallback<R>) => grpc.Call): Promise<Answer<R>> {
    return new Promise((done, fail) => {
      let cookie = '';
      const call = begin((error, reply) => {
        stop();
        if (error) fail(this.#failure(error, options));
        else done({ reply: reply as R, cookie });
      });
      call.on('metadata', (headers: grpc.Metadata) => {
        cookie = cookieOf(headers);
      });
      const stop = this.#follow(call, options.signal);
    });
  }

  /** The reply of a server-streaming method. The call ends when the iteration is left. */
  download<Q, R>(
    method: Method<Q, R>,
    request: Q,
    options: CallOptions,
    cookie = '',
    deadline = deadlineOf(options),
  ): Messages<R> {
    const { metadata, callOptions } = this.#arguments(options, cookie, deadline);
    const { path, responseDeserialize } = method;
    const message = this.#serialized(method, request);
    const call = this.#client.makeServerStreamRequest(
      path,
      asItIs,
      responseDeserialize,
      message,
      metadata,
      callOptions,
    );
    const stop = this.#follow(call, options.signal);
    // If a call is cancelled after its reader left, nobody waits for its error.
    call.on('error', () => undefined);
    let given = '';
    call.on('metadata', (headers: grpc.Metadata) => {
      given = cookieOf(headers);
    });
    const failure = (error: unknown): unknown => this.#failure(error, options);
    async function* read(): AsyncGenerator<R> {
      try {
        for await (const message of call) yield message as R;
      } catch (error) {
        throw failure(error);
      } finally {
        stop();
        call.cancel();
      }
    }
    return { [Symbol.asyncIterator]: read, cancel: () => call.cancel(), cookie: () => given };
  }

  /** A wait between two calls. `ended` fails with CANCELLED when a call would. */
  pause(ms: number, { signal }: CallOptions): Cancellable & { ended: Promise<void> } {
    this.#refuseEnded(signal);
    let cancel = (): void => undefined;
    const ended = new Promise<void>((done, fail) => {
      const timer = setTimeout(done, Math.min(ms, LONGEST_TIMER_MS));
      cancel = () => {
        clearTimeout(timer);
        fail(signal?.aborted ? aborted(signal) : new RivuletError(Code.CANCELLED, 'the call was cancelled'));
      };
    });
    const stop = this.#follow({ cancel }, signal);
    return { ended: ended.finally(stop), cancel };
  }

  #arguments(
    options: CallOptions,
    cookie: string,
    deadline = deadlineOf(options),
  ): { metadata: grpc.Metadata; callOptions: grpc.CallOptions } {
    this.#refuseEnded(options.signal);
    const metadata = new grpc.Metadata({ waitForReady: this.#waitForReady });
    const own: [string, string | Uint8Array][] = cookie === '' ? [] : [['cookie', cookie]];
    for (const [key, value] of [...this.#metadata, ...own, ...check.metadata(options.metadata)]) {
      metadata.add(key, typeof value === 'string' ? value : Buffer.from(value));
    }
    return { metadata, callOptions: { deadline } };
  }

  #refuseEnded(signal: AbortSignal | undefined): void {
    if (this.#closed) throw new Error('the client is closed');
    if (signal?.aborted) throw aborted(signal);
  }

  /** Cancels the call when the signal aborts or the client closes. The result undoes this. */
  #follow(call: Cancellable, signal: AbortSignal | undefined): () => void {
    const cancel = (): void => call.cancel();
    this.#running.add(call);
    signal?.addEventListener('abort', cancel, { once: true });
    return () => {
      this.#running.delete(call);
      signal?.removeEventListener('abort', cancel);
    };
  }

  /** The error that a failed call throws. */
  #failure(error: unknown, { signal, timeoutMs }: CallOptions): unknown {
    if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'number') return error;
    const { code, details, metadata } = error as grpc.ServiceError;
    if (code === grpc.status.CANCELLED && signal?.aborted) return aborted(signal);
    const late = code === grpc.status.DEADLINE_EXCEEDED && timeoutMs !== undefined;
    return fromStatus(
      code,
      late ? `the call did not end within its timeout of ${timeoutMs} ms: ${details}` : details,
      metadata,
    );
  }
}

function aborted(signal: AbortSignal): RivuletError {
  return new RivuletError(Code.CANCELLED, 'the signal of the call was aborted', { cause: signal.reason });
}
