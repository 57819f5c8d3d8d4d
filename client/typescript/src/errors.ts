// SPDX-License-Identifier: Apache-2.0
// The error that a failed call throws. A mistake that the client itself can detect (a wrong type, a
// number that does not fit its field) is a TypeError or RangeError instead, thrown before anything
// is sent.
import type { Metadata } from '@grpc/grpc-js';

import { BadRequest, ErrorInfo, RequestInfo, RetryInfo } from './gen/google/rpc/error_details';
import { Status } from './gen/google/rpc/status';

/** The status codes of gRPC, with their numbers. */
export enum Code {
  CANCELLED = 1,
  UNKNOWN = 2,
  INVALID_ARGUMENT = 3,
  DEADLINE_EXCEEDED = 4,
  NOT_FOUND = 5,
  ALREADY_EXISTS = 6,
  PERMISSION_DENIED = 7,
  RESOURCE_EXHAUSTED = 8,
  FAILED_PRECONDITION = 9,
  ABORTED = 10,
  OUT_OF_RANGE = 11,
  UNIMPLEMENTED = 12,
  INTERNAL = 13,
  UNAVAILABLE = 14,
  DATA_LOSS = 15,
  UNAUTHENTICATED = 16,
}

/** Whether the error refers the call to another replica: DRAINING, or the session has moved. */
export const leavesReplica = (error: RivuletError): boolean =>
  error.reason === 'DRAINING' || error.reason === 'SESSION_MOVED';

/** Details of an error besides code and text, as in RivuletError; absent: none. */
export interface ErrorFields {
  reason?: string;
  field?: string;
  retryAfterMs?: number;
  requestId?: string;
  metadata?: Readonly<Record<string, string>>;
  cause?: unknown;
}

/** A call that failed. `message` is for people and names code, reason and field as well. */
export class RivuletError extends Error {
  override readonly name = 'RivuletError';
  /** The gRPC status. */
  readonly code: Code;
  /** Only the text of the error; it may change from release to release. */
  readonly details: string;
  /**
   * UPPER_SNAKE_CASE and stable, for programs to decide by, for example "TOKEN_OUT_OF_RANGE"; "" if
   * the server gave none or no server answered.
   */
  readonly reason: string;
  /**
   * Path of the wrong field in the request, with a oneof as a level of its own: "prompt.tokens[3]",
   * "sampling.top_p"; "" if no field is wrong.
   */
  readonly field: string;
  /** Milliseconds after which to try again; undefined if the server gave none. */
  readonly retryAfterMs: number | undefined;
  /** The id of the request, as in the server's log; "" if the server gave none or none answered. */
  readonly requestId: string;
  /**
   * Further details by name. For an error that ends a reply, where to continue: "session_id" and
   * "session_position" on a session, else "sent_tokens": for each sample, the number of tokens that
   * were sent, separated by commas.
   */
  readonly metadata: Readonly<Record<string, string>>;

  constructor(code: Code, details: string, fields: ErrorFields = {}) {
    const request = fields.requestId && `request ${fields.requestId}`;
    const said = [fields.reason, fields.field, request].filter(Boolean).join(', ');
    super(
      `${Code[code]}${said && ` (${said})`}: ${details}`,
      'cause' in fields ? { cause: fields.cause } : {},
    );
    this.code = code;
    this.details = details;
    this.reason = fields.reason ?? '';
    this.field = fields.field ?? '';
    this.retryAfterMs = fields.retryAfterMs;
    this.requestId = fields.requestId ?? '';
    this.metadata = fields.metadata ?? {};
  }
}

/** The fields that the details of a google.rpc.Status hold; undefined if it has none. */
function fieldsOf(packed: Uint8Array): ErrorFields | undefined {
  const { details } = Status.decode(packed);
  if (details.length === 0) return undefined;
  const fields: ErrorFields = {};
  for (const { typeUrl, value } of details) {
    switch (typeUrl.slice(typeUrl.lastIndexOf('/') + 1)) {
      case 'google.rpc.ErrorInfo':
        ({ reason: fields.reason, metadata: fields.metadata } = ErrorInfo.decode(value));
        break;
      case 'google.rpc.BadRequest':
        fields.field = BadRequest.decode(value).fieldViolations[0]?.field;
        break;
      case 'google.rpc.RetryInfo': {
        const { seconds, nanos } = RetryInfo.decode(value).retryDelay ?? { seconds: 0n, nanos: 0 };
        fields.retryAfterMs = Number(seconds) * 1000 + nanos / 1e6;
        break;
      }
      case 'google.rpc.RequestInfo':
        fields.requestId = RequestInfo.decode(value).requestId;
        break;
    }
  }
  return fields;
}

/** The error of a gRPC status with its trailing metadata. */
export function fromStatus(code: number, details: string, metadata?: Metadata): RivuletError {
  const [packed] = metadata?.get('grpc-status-details-bin') ?? [];
  const known = code in Code ? (code as Code) : Code.UNKNOWN;
  let fields: ErrorFields | undefined;
  if (packed instanceof Uint8Array) {
    try {
      fields = fieldsOf(packed);
    } catch {
      // A proxy wrote its own details; code and text still hold.
    }
  }
  // Our servers attach details to each of their errors, so a balancer or the network ended this call.
  if (fields === undefined && (known === Code.UNKNOWN || known === Code.INTERNAL)) {
    const text = `the call ended without a status of the server, which may be gone: ${details}`;
    return new RivuletError(Code.UNAVAILABLE, text);
  }
  return new RivuletError(known, details, fields);
}
