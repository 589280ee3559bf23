/* SPDX-License-Identifier: MIT */
/* tests/abi/test_layout.c - the binary form of the public structs and constants, frozen.
 *
 * Proves    Each member of each public struct lies where a program compiled against the first
 *           header of this soname expects it, and each constant has the value it had, on LP64.
 * Fails     when a member is moved, removed or put in between, or an enumerator is renumbered. A
 *           member added at the end changes the struct's SIZE line only; that is allowed, and the
 *           line is then changed with it.
 */
#include "../support/test.h"

#include "../../host_api/ren.h"

#define SIZE(type, bytes)       CU_ASSERT_EQUAL(sizeof(type), bytes)
#define AT(type, member, bytes) CU_ASSERT_EQUAL(offsetof(type, member), bytes)
#define VALUE(constant, number) CU_ASSERT_EQUAL((long)(constant), number)

static int is_lp64(void)
{
    if (sizeof(void *) == 8 && sizeof(long) == 8 && sizeof(size_t) == 8) {
        return 1;
    }
    ren_test_skip("the frozen numbers are those of LP64");
    return 0;
}

static void test_layout_runtime(void)
{
    if (!is_lp64()) {
        return;
    }
    SIZE(ren_error, 280);
    AT(ren_error, status, 0);
    AT(ren_error, backend_code, 4);
    AT(ren_error, file, 8);
    AT(ren_error, line, 16);
    AT(ren_error, text, 20);

    SIZE(ren_job, 8);
    AT(ren_job, id, 0);

    SIZE(ren_buffer, 8);
    AT(ren_buffer, id, 0);

    SIZE(ren_tensor, 4);
    AT(ren_tensor, index, 0);

    SIZE(ren_allocator, 32);
    AT(ren_allocator, struct_size, 0);
    AT(ren_allocator, alloc, 8);
    AT(ren_allocator, free, 16);
    AT(ren_allocator, user, 24);

    SIZE(ren_log, 32);
    AT(ren_log, struct_size, 0);
    AT(ren_log, fn, 8);
    AT(ren_log, user, 16);
    AT(ren_log, min_level, 24);

    SIZE(ren_threads, 32);
    AT(ren_threads, struct_size, 0);
    AT(ren_threads, start, 8);
    AT(ren_threads, join, 16);
    AT(ren_threads, user, 24);

    SIZE(ren_cuda_options, 24);
    AT(ren_cuda_options, struct_size, 0);
    AT(ren_cuda_options, context, 8);
    AT(ren_cuda_options, stream_priority, 16);
    AT(ren_cuda_options, autotune, 20);

    SIZE(ren_runtime_config, 112);
    AT(ren_runtime_config, struct_size, 0);
    AT(ren_runtime_config, device, 4);
    AT(ren_runtime_config, device_index, 8);
    AT(ren_runtime_config, streams, 12);
    AT(ren_runtime_config, ring_entries, 16);
    AT(ren_runtime_config, graph_after_steps, 20);
    AT(ren_runtime_config, disable_graphs, 24);
    AT(ren_runtime_config, deterministic, 28);
    AT(ren_runtime_config, seed, 32);
    AT(ren_runtime_config, device_memory_limit_bytes, 40);
    AT(ren_runtime_config, allocator, 48);
    AT(ren_runtime_config, log, 56);
    AT(ren_runtime_config, threads, 64);
    AT(ren_runtime_config, cpu_threads, 72);
    AT(ren_runtime_config, host_drives_submitter, 76);
    AT(ren_runtime_config, allow_growth, 80);
    AT(ren_runtime_config, max_buffers, 84);
    AT(ren_runtime_config, module_path, 88);
    AT(ren_runtime_config, validate, 96);
    AT(ren_runtime_config, cuda, 104);

    SIZE(ren_stats, 296);
    AT(ren_stats, struct_size, 0);
    AT(ren_stats, jobs_posted, 8);
    AT(ren_stats, jobs_completed, 16);
    AT(ren_stats, jobs_failed, 24);
    AT(ren_stats, jobs_cancelled, 32);
    AT(ren_stats, completions_waiting, 40);
    AT(ren_stats, steps_queued, 48);
    AT(ren_stats, steps_graph, 56);
    AT(ren_stats, graph_captures, 64);
    AT(ren_stats, graph_updates, 72);
    AT(ren_stats, graph_fallbacks, 80);
    AT(ren_stats, events_recorded, 88);
    AT(ren_stats, events_waited, 96);
    AT(ren_stats, batches, 104);
    AT(ren_stats, pool_bytes_in_use, 112);
    AT(ren_stats, pool_bytes_reserved, 120);
    AT(ren_stats, pool_bytes_peak, 128);
    AT(ren_stats, pool_driver_allocs, 136);
    AT(ren_stats, pool_driver_frees, 144);
    AT(ren_stats, submit_ns, 152);
    AT(ren_stats, bubble_ns, 160);
    AT(ren_stats, abandoned_threads, 200);
    AT(ren_stats, timed_steps, 208);
    AT(ren_stats, timed_tasks, 216);
    AT(ren_stats, timed_events, 224);
    AT(ren_stats, timed_latency_ns, 232);
    AT(ren_stats, timed_issue_ns, 240);
    AT(ren_stats, timed_device_ns, 248);
    AT(ren_stats, timed_busy_ns, 256);
}

static void test_layout_jobs(void)
{
    if (!is_lp64()) {
        return;
    }
    SIZE(ren_use, 16);
    AT(ren_use, buffer, 0);
    AT(ren_use, access, 8);

    SIZE(ren_location, 24);
    AT(ren_location, buffer, 0);
    AT(ren_location, offset, 8);
    AT(ren_location, host, 16);

    SIZE(ren_copy, 56);
    AT(ren_copy, dst, 0);
    AT(ren_copy, src, 24);
    AT(ren_copy, bytes, 48);

    SIZE(ren_fill, 40);
    AT(ren_fill, dst, 0);
    AT(ren_fill, value, 24);
    AT(ren_fill, bytes, 32);

    SIZE(ren_device_io, 40);
    AT(ren_device_io, struct_size, 0);
    AT(ren_device_io, device, 4);
    AT(ren_device_io, stream, 8);
    AT(ren_device_io, native_stream, 16);
    AT(ren_device_io, pointers, 24);
    AT(ren_device_io, pointer_count, 32);

    SIZE(ren_step_result, 32);
    AT(ren_step_result, index, 0);
    AT(ren_step_result, loss, 8);
    AT(ren_step_result, grad_norm, 12);
    AT(ren_step_result, loss_scale, 16);
    AT(ren_step_result, skipped, 20);
    AT(ren_step_result, path, 24);

    SIZE(ren_completion, 80);
    AT(ren_completion, struct_size, 0);
    AT(ren_completion, job, 8);
    AT(ren_completion, status, 16);
    AT(ren_completion, stream, 20);
    AT(ren_completion, timeline_value, 24);
    AT(ren_completion, posted_ns, 32);
    AT(ren_completion, launched_ns, 40);
    AT(ren_completion, done_ns, 48);
    AT(ren_completion, step, 56);
    AT(ren_completion, err, 64);
    AT(ren_completion, weight_version, 72);

    SIZE(ren_job_desc, 208);
    AT(ren_job_desc, struct_size, 0);
    AT(ren_job_desc, kind, 4);
    AT(ren_job_desc, stream, 8);
    AT(ren_job_desc, priority, 12);
    AT(ren_job_desc, deadline_ns, 16);
    AT(ren_job_desc, wait, 24);
    AT(ren_job_desc, wait_count, 32);
    AT(ren_job_desc, uses, 40);
    AT(ren_job_desc, use_count, 48);
    AT(ren_job_desc, copy, 56);
    AT(ren_job_desc, fill, 112);
    AT(ren_job_desc, enqueue, 152);
    AT(ren_job_desc, enqueue_user, 160);
    AT(ren_job_desc, host_fn, 168);
    AT(ren_job_desc, host_user, 176);
    AT(ren_job_desc, done, 184);
    AT(ren_job_desc, user, 192);
    AT(ren_job_desc, deliver, 200);
    AT(ren_job_desc, channel, 204);
}

static void test_layout_model(void)
{
    if (!is_lp64()) {
        return;
    }
    SIZE(ren_model_config, 32);
    AT(ren_model_config, struct_size, 0);
    AT(ren_model_config, seed, 8);
    AT(ren_model_config, allow_tf32, 16);
    AT(ren_model_config, infer_requests, 20);
    AT(ren_model_config, infer_streams, 24);

    SIZE(ren_linear_options, 12);
    AT(ren_linear_options, struct_size, 0);
    AT(ren_linear_options, units, 4);
    AT(ren_linear_options, disable_bias, 8);

    SIZE(ren_conv2d_options, 48);
    AT(ren_conv2d_options, struct_size, 0);
    AT(ren_conv2d_options, filters, 4);
    AT(ren_conv2d_options, kernel, 8);
    AT(ren_conv2d_options, stride, 16);
    AT(ren_conv2d_options, padding, 24);
    AT(ren_conv2d_options, dilation, 32);
    AT(ren_conv2d_options, groups, 40);
    AT(ren_conv2d_options, disable_bias, 44);

    SIZE(ren_batch_norm_options, 12);
    AT(ren_batch_norm_options, struct_size, 0);
    AT(ren_batch_norm_options, momentum, 4);
    AT(ren_batch_norm_options, eps, 8);

    SIZE(ren_pool2d_options, 28);
    AT(ren_pool2d_options, struct_size, 0);
    AT(ren_pool2d_options, kernel, 4);
    AT(ren_pool2d_options, stride, 12);
    AT(ren_pool2d_options, padding, 20);

    SIZE(ren_leaky_relu_options, 8);
    AT(ren_leaky_relu_options, struct_size, 0);
    AT(ren_leaky_relu_options, negative_slope, 4);

    SIZE(ren_gelu_options, 8);
    AT(ren_gelu_options, struct_size, 0);
    AT(ren_gelu_options, kind, 4);

    SIZE(ren_dropout_options, 8);
    AT(ren_dropout_options, struct_size, 0);
    AT(ren_dropout_options, probability, 4);

    SIZE(ren_cross_entropy_options, 8);
    AT(ren_cross_entropy_options, struct_size, 0);
    AT(ren_cross_entropy_options, label_smoothing, 4);

    SIZE(ren_huber_options, 8);
    AT(ren_huber_options, struct_size, 0);
    AT(ren_huber_options, delta, 4);
}

static void test_layout_training(void)
{
    if (!is_lp64()) {
        return;
    }
    SIZE(ren_trainer_config, 72);
    AT(ren_trainer_config, struct_size, 0);
    AT(ren_trainer_config, optimizer, 4);
    AT(ren_trainer_config, learning_rate, 8);
    AT(ren_trainer_config, momentum, 12);
    AT(ren_trainer_config, nesterov, 16);
    AT(ren_trainer_config, beta1, 20);
    AT(ren_trainer_config, beta2, 24);
    AT(ren_trainer_config, eps, 28);
    AT(ren_trainer_config, weight_decay, 32);
    AT(ren_trainer_config, lars_eta, 36);
    AT(ren_trainer_config, precision, 40);
    AT(ren_trainer_config, loss_scale, 44);
    AT(ren_trainer_config, clip_norm, 48);
    AT(ren_trainer_config, ema_decay, 52);
    AT(ren_trainer_config, accumulate_steps, 56);
    AT(ren_trainer_config, plan_cache, 60);
    AT(ren_trainer_config, stream_policy, 64);
    AT(ren_trainer_config, graph_segments, 68);

    SIZE(ren_binding, 24);
    AT(ren_binding, input, 0);
    AT(ren_binding, data, 8);
    AT(ren_binding, bytes, 16);

    SIZE(ren_step_desc, 56);
    AT(ren_step_desc, struct_size, 0);
    AT(ren_step_desc, bindings, 8);
    AT(ren_step_desc, binding_count, 16);
    AT(ren_step_desc, batch, 20);
    AT(ren_step_desc, inputs_consumed, 24);
    AT(ren_step_desc, done, 32);
    AT(ren_step_desc, user, 40);
    AT(ren_step_desc, deliver, 48);
    AT(ren_step_desc, channel, 52);

    SIZE(ren_infer_desc, 104);
    AT(ren_infer_desc, struct_size, 0);
    AT(ren_infer_desc, bindings, 8);
    AT(ren_infer_desc, binding_count, 16);
    AT(ren_infer_desc, batch, 20);
    AT(ren_infer_desc, output, 24);
    AT(ren_infer_desc, out_data, 32);
    AT(ren_infer_desc, out_buffer, 40);
    AT(ren_infer_desc, out_bytes, 48);
    AT(ren_infer_desc, stream, 56);
    AT(ren_infer_desc, priority, 60);
    AT(ren_infer_desc, done, 64);
    AT(ren_infer_desc, user, 72);
    AT(ren_infer_desc, deliver, 80);
    AT(ren_infer_desc, channel, 84);
    AT(ren_infer_desc, out_offset, 88);
    AT(ren_infer_desc, any_version, 96);
}

static void test_values_status(void)
{
    VALUE(REN_OK, 0);
    VALUE(REN_TIMEOUT, 1);
    VALUE(REN_CANCELLED, 2);
    VALUE(REN_TOO_LATE, 3);
    VALUE(REN_WOKEN, 4);
    VALUE(REN_PENDING, 5);
    VALUE(REN_ERR_INVALID_ARGUMENT, -1);
    VALUE(REN_ERR_BAD_STRUCT, -2);
    VALUE(REN_ERR_UNSUPPORTED, -3);
    VALUE(REN_ERR_NO_MEMORY, -4);
    VALUE(REN_ERR_NO_DEVICE_MEMORY, -5);
    VALUE(REN_ERR_WOULD_GROW, -6);
    VALUE(REN_ERR_QUEUE_FULL, -7);
    VALUE(REN_ERR_BUSY, -8);
    VALUE(REN_ERR_CLOSED, -9);
    VALUE(REN_ERR_STALE, -10);
    VALUE(REN_ERR_UNKNOWN_JOB, -11);
    VALUE(REN_ERR_REENTRANT, -12);
    VALUE(REN_ERR_DEADLINE, -13);
    VALUE(REN_ERR_TIMEOUT, -14);
    VALUE(REN_ERR_ABORTED, -15);
    VALUE(REN_ERR_NO_DEVICE, -16);
    VALUE(REN_ERR_DEVICE, -17);
    VALUE(REN_ERR_DEVICE_LOST, -18);
    VALUE(REN_ERR_THREAD, -19);
    VALUE(REN_ERR_FORKED, -20);
    VALUE(REN_ERR_SHAPE, -21);
    VALUE(REN_ERR_NAME, -22);
    VALUE(REN_ERR_IO, -23);
    VALUE(REN_ERR_FORMAT, -24);
    VALUE(REN_ERR_CALLBACK, -25);
    VALUE(REN_ERR_INTERNAL, -26);
    VALUE(REN_ERR_DRIVER_TOO_OLD, -27);
    VALUE(REN_ERR_NO_GPU, -28);
}

static void test_values_constants(void)
{
    VALUE(REN_DEVICE_AUTO, 0);
    VALUE(REN_DEVICE_CPU, 1);
    VALUE(REN_DEVICE_CUDA, 2);
    VALUE(REN_STREAM_TRANS, 0);
    VALUE(REN_STREAM_COMP_1, 1);
    VALUE(REN_STREAM_COMP_2, 2);
    VALUE(REN_STREAM_COMP_3, 3);
    VALUE(REN_STREAM_UPDATE, 4);
    VALUE(REN_STREAM_COUNT, 5);
    VALUE(REN_LOG_ERROR, 0);
    VALUE(REN_LOG_WARNING, 1);
    VALUE(REN_LOG_INFO, 2);
    VALUE(REN_LOG_DEBUG, 3);
    VALUE(REN_JOB_COPY, 0);
    VALUE(REN_JOB_FILL, 1);
    VALUE(REN_JOB_DEVICE, 2);
    VALUE(REN_JOB_HOST, 3);
    VALUE(REN_JOB_BARRIER, 4);
    VALUE(REN_PRIORITY_NORMAL, 0);
    VALUE(REN_PRIORITY_REALTIME, 1);
    VALUE(REN_PRIORITY_BACKGROUND, 2);
    VALUE(REN_DELIVER_PUMP, 0);
    VALUE(REN_DELIVER_ANY_THREAD, 1);
    VALUE(REN_DELIVER_NONE, 2);
    VALUE(REN_ACCESS_READ, 1);
    VALUE(REN_ACCESS_WRITE, 2);
    VALUE(REN_ACCESS_READ_WRITE, 3);
    VALUE(REN_PATH_QUEUED, 0);
    VALUE(REN_PATH_GRAPH, 1);
    VALUE(REN_F32, 0);
    VALUE(REN_F16, 1);
    VALUE(REN_BF16, 2);
    VALUE(REN_I32, 3);
    VALUE(REN_U8, 4);
    VALUE(REN_GELU_ERF, 0);
    VALUE(REN_GELU_TANH, 1);
    VALUE(REN_LOAD_ALLOW_MISSING, 1);
    VALUE(REN_LOAD_ALLOW_EXTRA, 2);
    VALUE(REN_OPTIMIZER_SGD, 0);
    VALUE(REN_OPTIMIZER_ADAM, 1);
    VALUE(REN_OPTIMIZER_ADAMW, 2);
    VALUE(REN_OPTIMIZER_LARS, 3);
    VALUE(REN_PRECISION_F32, 0);
    VALUE(REN_PRECISION_MIXED_F16, 1);
    VALUE(REN_PRECISION_MIXED_BF16, 2);
    VALUE(REN_POLICY_GREEDY, 0);
    VALUE(REN_POLICY_STATIC, 1);
    VALUE(REN_SCALAR_LEARNING_RATE, 0);
    VALUE(REN_SCALAR_MOMENTUM, 1);
    VALUE(REN_SCALAR_BETA1, 2);
    VALUE(REN_SCALAR_BETA2, 3);
    VALUE(REN_SCALAR_EPS, 4);
    VALUE(REN_SCALAR_WEIGHT_DECAY, 5);
    VALUE(REN_SCALAR_LARS_ETA, 6);
    VALUE(REN_SCALAR_CLIP_NORM, 7);
    VALUE(REN_SCALAR_EMA_DECAY, 8);
    VALUE(REN_MAX_WAITS, 16);
    VALUE(REN_MAX_USES, 16);
    VALUE(REN_CHANNELS, 16);
    VALUE(REN_MAX_PRODUCERS, 63);
    VALUE(REN_MAX_RANK, 4);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_layout_runtime", test_layout_runtime},
        {"test_layout_jobs", test_layout_jobs},
        {"test_layout_model", test_layout_model},
        {"test_layout_training", test_layout_training},
        {"test_values_status", test_values_status},
        {"test_values_constants", test_values_constants},
    };
    return ren_test_main(argc, argv, "abi/test_layout", cases, REN_TEST_COUNT(cases), 10);
}
