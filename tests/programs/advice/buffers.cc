// Buffers that are taken from the system and given back in each round: every page comes in by a fault.
// build: g++ -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

#include <numeric>
#include <vector>

static std::vector<float> signal_in;

static void take_signal() {
    signal_in.resize(24 << 20);
    for (size_t i = 0; i < signal_in.size(); i++)
        signal_in[i] = (float)(i % 13);
}

/* This loop is the first to touch the buffer's pages. */
/* flaw: peaks */
static float *smooth_into(float *smoothed) {
    size_t last = signal_in.size() - 1;
    smoothed[0] = smoothed[last] = 0;
    for (size_t i = 1; i < last; i++)
        smoothed[i] = signal_in[i - 1] + 2 * signal_in[i] + signal_in[i + 1];
    return smoothed;
}

static uint64_t peaks_in(const float *smoothed) {
    uint64_t peaks = 0;
    for (size_t i = 1; i + 1 < signal_in.size(); i++)
        peaks += (smoothed[i] > smoothed[i - 1]) & (smoothed[i] > smoothed[i + 1]);
    return peaks;
}

/* 96 MiB from malloc, and back, in each round. */
static uint64_t peaks_with_new_buffer() {
    /* flaw: peaks */
    float *smoothed = (float *)malloc(signal_in.size() * sizeof(float));
    if (!smoothed)
        exit(1);
    smooth_into(smoothed);
    uint64_t peaks = peaks_in(smoothed);
    free(smoothed);
    return peaks;
}

static float *kept_buffer;

static void take_buffer() {
    take_signal();
    kept_buffer = (float *)filled(signal_in.size() * sizeof(float));
}

static uint64_t peaks_with_kept_buffer() { return peaks_in(smooth_into(kept_buffer)); }

/* A mesh with fields of 40 MB each, computed anew in each step. */
struct mesh {
    size_t nodes;
    std::vector<double> position, velocity;
};

static mesh beam;

static void take_beam() {
    beam.nodes = 5000000;
    beam.position.resize(beam.nodes);
    beam.velocity.resize(beam.nodes);
    for (size_t i = 0; i < beam.nodes; i++) {
        beam.position[i] = (double)(i * i % 11);
        beam.velocity[i] = (double)(i % 3);
    }
}

static void pull(const mesh &mesh, std::vector<double> &force) {
    for (size_t i = 1; i + 1 < mesh.nodes; i++)
        force[i] = mesh.position[i - 1] - 2 * mesh.position[i] + mesh.position[i + 1];
}

static void damp(const mesh &mesh, const std::vector<double> &force, std::vector<double> &damped) {
    for (size_t i = 0; i < mesh.nodes; i++)
        damped[i] = force[i] * 4 - mesh.velocity[i];
}

/* flaw: forces */
static double step_with_new_fields(const mesh &mesh) {
    std::vector<double> force(mesh.nodes), damped(mesh.nodes);
    pull(mesh, force);
    damp(mesh, force, damped);
    return std::accumulate(damped.begin(), damped.end(), 0.0);
}

static uint64_t forces_with_new_fields() { return (uint64_t)(int64_t)step_with_new_fields(beam); }

static std::vector<double> kept_force, kept_damped;

static void take_fields() {
    take_beam();
    kept_force.resize(beam.nodes);
    kept_damped.resize(beam.nodes);
}

static uint64_t forces_with_kept_fields() {
    pull(beam, kept_force);
    damp(beam, kept_force, kept_damped);
    return (uint64_t)(int64_t)std::accumulate(kept_damped.begin(), kept_damped.end(), 0.0);
}

KERNELS({"peaks", {{"flawed", take_signal, peaks_with_new_buffer}, {"mended", take_buffer, peaks_with_kept_buffer}}, 1},
        {"forces", {{"flawed", take_beam, forces_with_new_fields}, {"mended", take_fields, forces_with_kept_fields}}, 1})
