// SPDX-License-Identifier: Apache-2.0
export { RivuletClient } from './client';
export type { ClientOptions, TlsOptions } from './connection';
export { Code, RivuletError } from './errors';
export type * from './options';
export type {
  Appended,
  DetokenizedText,
  Durability,
  Finish,
  FinishReason,
  Generation,
  Model,
  ModelLoad,
  ModelSummary,
  Part,
  Sample,
  Score,
  ServerLoad,
  SessionInfo,
  Tokens,
  TopLogprobs,
  Usage,
} from './replies';
export { Session } from './session';
export { GenerateStream } from './stream';
