// Many objects of unlike sizes in loops of unlike kinds, for rankings.
#include "known.h"

#define M 64
struct particle { double x, y, z, vx, vy, vz; };
struct mesh { int n; int *edges; double *weights; struct particle *parts; };
struct node { long value; struct node *next; };

static double temperature[M][M / 16];
static int histogram[16];
static struct mesh mesh;
double *pressure, *density;
double sink;

static APART void move(struct particle *p, int n, double dt) {
    for (int i = 0; i < n; i++) {
        p[i].x += p[i].vx * dt;
        p[i].y += p[i].vy * dt;
        p[i].z += p[i].vz * dt;
    }
}

static APART double gather(const struct mesh *m, const double *field) {
    double s = 0;
    for (int i = 0; i < m->n; i++) {
        int e = m->edges[i];
        double w = m->weights[i];
        s += field[e] * w;
    }
    return s;
}

static APART double diffuse(void) {
    double s = 0;
    for (int i = 1; i < M - 1; i++)
        for (int j = 1; j < M / 16 - 1; j++) {
            double up = temperature[i - 1][j];
            double down = temperature[i + 1][j];
            double here = temperature[i][j] * pressure[i];
            s += up + down - 2 * here;
        }
    return s;
}

static APART long walk(const struct node *list) {
    long s = 0;
    for (; list; list = list->next)
        s += list->value;
    return s;
}

static APART void count(const unsigned char *bytes, int n) {
    for (int i = 0; i < n; i++)
        histogram[bytes[i] & 15]++;
}

static APART double triad(const double *a, const double *b, double *c, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) {
        double left = a[i];
        double right = b[i];
        c[i] = left + 3 * right;
        s += c[i];
    }
    return s;
}

int main(void) {
    double *alpha = calloc(2 * M, 8), *beta = calloc(2 * M, 8), *gamma_ = calloc(2 * M, 8);
    unsigned char *bytes = calloc(M * 8, 1);
    struct node *nodes = calloc(M, sizeof *nodes);
    pressure = calloc(M, 8);
    density = calloc(4 * M, 8);
    mesh = (struct mesh){M, calloc(M, sizeof(int)), calloc(M, 8), calloc(M, sizeof(struct particle))};
    for (int i = 0; i < M; i++) {
        mesh.edges[i] = (i * 37) % (4 * M);
        nodes[i].next = i ? nodes + i - 1 : 0;
    }
    struct node *head = nodes + M - 1;
    KNOWN("static", "temperature", temperature, sizeof temperature);
    KNOWN("static", "histogram", histogram, sizeof histogram);
    KNOWN("static", "mesh", &mesh, sizeof mesh);
    KNOWN("static", "pressure", &pressure, 8);
    KNOWN("static", "density", &density, 8);
    KNOWN("pointee", "pressure", pressure, M * 8);
    KNOWN("pointee", "density", density, 4 * M * 8);
    KNOWN("pointee", "mesh.edges", mesh.edges, M * sizeof(int));
    KNOWN("pointee", "mesh.weights", mesh.weights, M * 8);
    KNOWN("pointee", "mesh.parts", mesh.parts, M * sizeof(struct particle));
    KNOWN("pointee", "alpha", alpha, 2 * M * 8);
    KNOWN("pointee", "beta", beta, 2 * M * 8);
    KNOWN("pointee", "gamma_", gamma_, 2 * M * 8);
    KNOWN("pointee", "bytes", bytes, M * 8);
    KNOWN("pointee", "nodes", nodes, M * sizeof *nodes);
    fflush(stdout);
    BEGIN;
    double s = 0;
    for (int round = 0; round < 1; round++) {
        move(mesh.parts, mesh.n, 0.1);
        s += gather(&mesh, density) + diffuse() + walk(head);
        count(bytes, M * 8);
        s += triad(alpha, beta, gamma_, 2 * M) + triad(alpha, gamma_, beta, M);
    }
    sink = s;
    END;
    return 0;
}
