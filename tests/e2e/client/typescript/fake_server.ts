// SPDX-License-Identifier: Apache-2.0
// A server that answers as a test tells it, for what a real one does only by chance.
import * as grpc from '@grpc/grpc-js';
import * as protoLoader from '@grpc/proto-loader';
import { RivuletClient, type ClientOptions } from 'rivulet-client';

const format = { longs: String, enums: String, defaults: false, oneofs: true };
const files = ['inference', 'session_service'].map((name) => `rivulet/v1/${name}.proto`);
const details = ['google/rpc/status.proto', 'google/rpc/error_details.proto'];
const definition = protoLoader.loadSync([...files, ...details], {
  ...format,
  includeDirs: [process.env['RIVULET_PROTO_DIR']!],
});

// Requests and replies are plain objects of proto-loader.
export type Message = any;
type Unary = (request: Message) => Message;
type Streaming = (
  request: Message,
  call: grpc.ServerWritableStream<Message, Message>,
) => Iterable<Message> | AsyncIterable<Message>;

/** Handlers by method. They throw what status() makes. */
export interface Handlers {
  Generate?: Streaming;
  Score?: Unary;
  OpenSession?: Unary;
  Append?: Unary;
  RewindSession?: Unary;
}

function packed(type: string, value: object): object {
  const message = definition[`google.rpc.${type}`] as protoLoader.MessageTypeDefinition<object, object>;
  return { type_url: `type.googleapis.com/google.rpc.${type}`, value: message.serialize(value) };
}

/** A status with details, {ErrorInfo: {...}}; without the argument as one of gRPC itself. */
export function status(
  code: grpc.status,
  text: string,
  more?: Record<string, object>,
): Partial<grpc.ServiceError> {
  const metadata = new grpc.Metadata();
  if (more !== undefined) {
    const values = Object.entries(more).map(([type, value]) => packed(type, value));
    const message = definition['google.rpc.Status'] as protoLoader.MessageTypeDefinition<object, object>;
    metadata.add('grpc-status-details-bin', message.serialize({ code, message: text, details: values }));
  }
  return { code, details: text, metadata };
}

/** A running fake. `calls`: the metadata of every call by method, in order. */
export interface Fake {
  target: string;
  calls: Record<string, grpc.Metadata[]>;
  close(): void;
}

export async function fake(
  handlers: Handlers,
  credentials: grpc.ServerCredentials = grpc.ServerCredentials.createInsecure(),
): Promise<Fake> {
  const calls: Record<string, grpc.Metadata[]> = {};
  const note = (method: string, metadata: grpc.Metadata): void => {
    (calls[method] ??= []).push(metadata);
  };
  const implementation: grpc.UntypedServiceImplementation = {};
  for (const [method, handler] of Object.entries(handlers)) {
    if (method === 'Generate') {
      implementation[method] = async (call: grpc.ServerWritableStream<Message, Message>) => {
        note(method, call.metadata);
        try {
          for await (const reply of (handler as Streaming)(call.request, call)) call.write(reply);
          call.end();
        } catch (error) {
          call.emit('error', error);
        }
      };
    } else {
      implementation[method] = (
        call: grpc.ServerUnaryCall<Message, Message>,
        done: grpc.sendUnaryData<Message>,
      ) => {
        note(method, call.metadata);
        try {
          done(null, (handler as Unary)(call.request));
        } catch (error) {
          done(error as grpc.ServiceError);
        }
      };
    }
  }
  const server = new grpc.Server();
  for (const service of ['InferenceService', 'SessionService']) {
    const methods = definition[`rivulet.v1.${service}`] as grpc.ServiceDefinition;
    const own = Object.fromEntries(Object.entries(implementation).filter(([name]) => name in methods));
    if (Object.keys(own).length > 0) server.addService(methods, own);
  }
  const port = await new Promise<number>((done, fail) => {
    server.bindAsync('127.0.0.1:0', credentials, (error, bound) => (error ? fail(error) : done(bound)));
  });
  return { target: `127.0.0.1:${port}`, calls, close: () => server.forceShutdown() };
}

/** Runs `body` with a fake of these handlers and a client of it. */
export async function withFake(
  handlers: Handlers,
  body: (client: RivuletClient, server: Fake) => Promise<void>,
  options?: ClientOptions,
): Promise<void> {
  const server = await fake(handlers);
  const client = new RivuletClient(server.target, options);
  try {
    await body(client, server);
  } finally {
    client.close();
    server.close();
  }
}
