// SPDX-License-Identifier: Apache-2.0
// The functions of the runtime API that queue work and wait for it: copies, streams, events,
// graphs.
#include <climits>
#include <cstring>
#include <utility>

#include "tests/support/cuda_emulator/block.h"
#include "tests/support/cuda_emulator/runtime.h"

using rivulet::cuda_emulator::Die;
using rivulet::cuda_emulator::Event;
using rivulet::cuda_emulator::Graph;
using rivulet::cuda_emulator::GraphExec;
using rivulet::cuda_emulator::Item;
using rivulet::cuda_emulator::Lock;
using rivulet::cuda_emulator::Runtime;
using rivulet::cuda_emulator::Stream;

#define RIVULET_ENTER(call)    \
  Runtime& r = Runtime::Get(); \
  const Lock lock(r.mutex);    \
  if (const cudaError_t e = r.Enter(call)) return e

namespace {

bool Known(Runtime& r, Stream* s) {
  return s == nullptr || (r.streams.count(s) > 0 && !s->destroyed);
}

// Whether one side of a copy is where its kind says.
bool SideFits(Runtime& r, const void* p, size_t bytes, bool device, bool any) {
  if (any) return !r.memory.Touches(p) || r.memory.Holds(p, bytes);
  return device ? r.memory.Holds(p, bytes) : !r.memory.Touches(p);
}

bool CopyFits(Runtime& r, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return true;
  const bool any = kind == cudaMemcpyDefault;
  return SideFits(r, to, bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
                  any) &&
         SideFits(r, from, bytes,
                  kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, any);
}

cudaError_t Queue(Runtime& r, Stream* stream, std::function<void()> run) {
  Item item;
  item.run = std::move(run);
  return r.Queue(stream, std::move(item));
}

// Calls that wait are an error on a stream that captures.
bool Capturing(Stream* s) {
  if (s == nullptr || s->capture == nullptr) return false;
  s->capture_failed = true;
  return true;
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  RIVULET_ENTER("cudaMemcpy");
  if (!CopyFits(r, to, from, bytes, kind)) return r.Remember(cudaErrorInvalidValue);
  return Queue(r, nullptr, [=] { std::memcpy(to, from, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  RIVULET_ENTER("cudaMemcpyAsync");
  if (!CopyFits(r, to, from, bytes, kind)) return r.Remember(cudaErrorInvalidValue);
  return Queue(r, stream, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  RIVULET_ENTER("cudaMemcpy2DAsync");
  if (width > to_pitch || width > from_pitch) return r.Remember(cudaErrorInvalidValue);
  if (width == 0 || height == 0) return cudaSuccess;
  // Both ends inside, and of the right kind.
  const size_t to_bytes = (height - 1) * to_pitch + width;
  const size_t from_bytes = (height - 1) * from_pitch + width;
  if (!CopyFits(r, to, from, 1, kind) || (r.memory.Touches(to) && !r.memory.Holds(to, to_bytes)) ||
      (r.memory.Touches(from) && !r.memory.Holds(from, from_bytes))) {
    return r.Remember(cudaErrorInvalidValue);
  }
  return Queue(r, stream, [=] {
    for (size_t i = 0; i < height; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_pitch,
                  static_cast<const char*>(from) + i * from_pitch, width);
    }
  });
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  RIVULET_ENTER("cudaMemsetAsync");
  if (bytes > 0 && !r.memory.Holds(pointer, bytes) && r.host_allocations.count(pointer) == 0) {
    return r.Remember(cudaErrorInvalidValue);
  }
  return Queue(r, stream, [=] { std::memset(pointer, value, bytes); });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  RIVULET_ENTER("cudaStreamCreateWithFlags");
  *stream = new Stream;
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  r.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

// As the real one: returns at once, the queued work is still done. The object stays, so that events
// may point at it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RIVULET_ENTER("cudaStreamDestroy");
  if (stream == nullptr || !Known(r, stream)) return r.Remember(cudaErrorInvalidResourceHandle);
  stream->destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RIVULET_ENTER("cudaStreamQuery");
  if (!Known(r, stream)) return r.Remember(cudaErrorInvalidResourceHandle);
  if (Capturing(stream)) return r.Remember(cudaErrorStreamCaptureUnsupported);
  if (stream == nullptr) return cudaSuccess;
  r.Run(stream, LLONG_MAX, r.options.items_per_query);
  if (r.sticky != cudaSuccess) return r.sticky;
  return stream->items.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RIVULET_ENTER("cudaStreamSynchronize");
  if (!Known(r, stream)) return r.Remember(cudaErrorInvalidResourceHandle);
  if (Capturing(stream)) return r.Remember(cudaErrorStreamCaptureUnsupported);
  if (stream == nullptr) {
    r.RunBlockingStreams("cudaStreamSynchronize");
  } else {
    r.RunAll(stream, "cudaStreamSynchronize");
  }
  return r.sticky;
}

cudaError_t cudaDeviceSynchronize() {
  RIVULET_ENTER("cudaDeviceSynchronize");
  for (Stream* s : std::set<Stream*>(r.streams)) {
    if (Capturing(s)) return r.Remember(cudaErrorStreamCaptureUnsupported);
    r.RunAll(s, "cudaDeviceSynchronize");
  }
  return r.sticky;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  RIVULET_ENTER("cudaStreamWaitEvent");
  if (event == nullptr || !Known(r, stream)) return r.Remember(cudaErrorInvalidResourceHandle);
  if (event->stream == nullptr) return cudaSuccess;
  Item item;
  item.wait_stream = event->stream;
  item.wait_ticket = event->ticket;
  return r.Queue(stream, std::move(item));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  RIVULET_ENTER("cudaLaunchHostFunc");
  return Queue(r, stream, [=] { function(argument); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  RIVULET_ENTER("cudaEventCreateWithFlags");
  *event = new Event;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  RIVULET_ENTER("cudaEventDestroy");
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RIVULET_ENTER("cudaEventRecord");
  if (event == nullptr || !Known(r, stream)) return r.Remember(cudaErrorInvalidResourceHandle);
  if (stream == nullptr) {
    r.RunBlockingStreams("cudaEventRecord");
    event->stream = nullptr;
    return r.sticky;
  }
  if (Capturing(stream)) Die("an event recorded while capturing: not emulated");
  const cudaError_t e = r.Queue(stream, {});
  event->stream = stream;
  event->ticket = stream->queued;
  return e;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  RIVULET_ENTER("cudaEventQuery");
  if (event == nullptr) return r.Remember(cudaErrorInvalidResourceHandle);
  if (event->stream == nullptr) return cudaSuccess;
  r.Run(event->stream, event->ticket, r.options.items_per_query);
  if (r.sticky != cudaSuccess) return r.sticky;
  return event->stream->done >= event->ticket ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  RIVULET_ENTER("cudaEventSynchronize");
  if (event == nullptr) return r.Remember(cudaErrorInvalidResourceHandle);
  if (event->stream == nullptr) return cudaSuccess;
  r.Run(event->stream, event->ticket, INT_MAX);
  if (r.sticky != cudaSuccess) return r.sticky;
  if (event->stream->done < event->ticket) {
    Die("cudaEventSynchronize would wait for ever: a kernel never ends");
  }
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  RIVULET_ENTER("cudaEventElapsedTime");
  if (begin == nullptr || end == nullptr) return r.Remember(cudaErrorInvalidResourceHandle);
  *milliseconds = 1;  // the emulator knows nothing of time
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  RIVULET_ENTER("cudaStreamBeginCapture");
  if (stream == nullptr || !Known(r, stream) || stream->capture != nullptr) {
    return r.Remember(cudaErrorInvalidValue);
  }
  stream->capture = new Graph;
  stream->capture_failed = false;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  RIVULET_ENTER("cudaStreamEndCapture");
  if (stream == nullptr || !Known(r, stream) || stream->capture == nullptr) {
    return r.Remember(cudaErrorInvalidValue);
  }
  *graph = std::exchange(stream->capture, nullptr);
  if (!stream->capture_failed) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return r.Remember(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  RIVULET_ENTER("cudaGraphInstantiate");
  if (graph == nullptr) return r.Remember(cudaErrorInvalidValue);
  *exec = new GraphExec{graph->items};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  RIVULET_ENTER("cudaGraphUpload");
  return exec == nullptr || !Known(r, stream) ? r.Remember(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  RIVULET_ENTER("cudaGraphLaunch");
  if (exec == nullptr) return r.Remember(cudaErrorInvalidValue);
  ++r.counters.graph_launches;
  for (Item item : exec->items) {
    item.graph = r.counters.graph_launches;
    if (const cudaError_t e = r.Queue(stream, std::move(item))) return e;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  RIVULET_ENTER("cudaGraphDestroy");
  delete graph;
  return cudaSuccess;
}

// Launches that are queued keep their own copy, as the real ones do.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RIVULET_ENTER("cudaGraphExecDestroy");
  delete exec;
  return cudaSuccess;
}
