/* Structures of which a loop uses a part: hot fields beside cold ones, arrays of structures, hot fields on
 * several lines. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

/* Rounds of the loop that is measured. */
static int count;

/* flaw: orders */
struct order {
    int64_t number;
    char customer[40];
    char street[56];
    int32_t day, state;
    double price;
    char remark[72];
};

enum { ORDERS = 400000 };

static struct order *orders;
static double *prices;

static void take_orders(void) {
    count = ORDERS;
    orders = filled(ORDERS * sizeof *orders);
    for (int i = 0; i < ORDERS; i++) {
        orders[i].number = i;
        orders[i].price = (double)(i % 97);
    }
}

static uint64_t turnover_of_orders(void) {
    double sum = 0;
    /* flaw: orders */
    for (int i = 0; i < count; i++)
        sum += orders[i].price;
    return (uint64_t)sum;
}

static void take_prices(void) {
    count = ORDERS;
    prices = filled(ORDERS * sizeof *prices);
    for (int i = 0; i < ORDERS; i++)
        prices[i] = (double)(i % 97);
}

static uint64_t turnover_of_prices(void) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += prices[i];
    return (uint64_t)sum;
}

/* A hash table with chains, whose nodes carry what a search does not look at. */
/* flaw: members */
struct member {
    uint64_t key;
    struct member *next;
    char name[64], city[48], telephone[32], comment[96];
};

enum { MEMBERS = 300000, BUCKETS = 1 << 17, SEARCHES = 200000 };

static struct member *buckets[BUCKETS];
static uint64_t *wanted;

static uint64_t bucket_of(uint64_t key) { return key * 0x9e3779b97f4a7c15u >> (64 - 17); }

static uint64_t key_of(uint32_t number) { return (uint64_t)number * 2654435761u + 12345; }

static void take_searches(void) {
    count = SEARCHES;
    wanted = filled(SEARCHES * sizeof *wanted);
    for (int i = 0; i < SEARCHES; i++)
        wanted[i] = key_of((uint32_t)below(MEMBERS));
}

static void take_members(void) {
    uint32_t *order = filled(MEMBERS * sizeof *order);
    shuffle(order, MEMBERS);
    struct member *pool = filled(MEMBERS * sizeof *pool);
    for (int i = 0; i < MEMBERS; i++) {
        struct member *member = &pool[i];
        member->key = key_of(order[i]);
        struct member **head = &buckets[bucket_of(member->key)];
        member->next = *head;
        *head = member;
    }
    take_searches();
}

static uint64_t find_members(void) {
    uint64_t steps = 0;
    /* flaw: members */
    for (int i = 0; i < count; i++) {
        const struct member *member = buckets[bucket_of(wanted[i])];
        while (member && member->key != wanted[i]) {
            member = member->next;
            steps++;
        }
        steps += member != NULL;
    }
    return steps;
}

/* Keys and chains apart from the rest. */
struct entry {
    uint64_t key;
    struct entry *next;
};

static struct entry *entries[BUCKETS];

static void take_entries(void) {
    uint32_t *order = filled(MEMBERS * sizeof *order);
    shuffle(order, MEMBERS);
    struct entry *pool = filled(MEMBERS * sizeof *pool);
    for (int i = 0; i < MEMBERS; i++) {
        struct entry *entry = &pool[i];
        entry->key = key_of(order[i]);
        struct entry **head = &entries[bucket_of(entry->key)];
        entry->next = *head;
        *head = entry;
    }
    take_searches();
}

static uint64_t find_entries(void) {
    uint64_t steps = 0;
    for (int i = 0; i < count; i++) {
        const struct entry *entry = entries[bucket_of(wanted[i])];
        while (entry && entry->key != wanted[i]) {
            entry = entry->next;
            steps++;
        }
        steps += entry != NULL;
    }
    return steps;
}

/* flaw: particles */
struct particle {
    double x, y, z, vx, vy, vz, mass, charge;
};

enum { PARTICLES = 1500000 };

static struct particle *particles;
static double *xs, *vxs;

static void take_particles(void) {
    count = PARTICLES;
    particles = filled(PARTICLES * sizeof *particles);
    for (int i = 0; i < PARTICLES; i++)
        particles[i].x = i % 31, particles[i].vx = i % 3;
}

static uint64_t drift_particles(void) {
    /* flaw: particles */
    for (int i = 0; i < count; i++)
        particles[i].x += particles[i].vx;
    return (uint64_t)(particles[5].x + 3 * particles[PARTICLES - 1].x);
}

static void take_components(void) {
    count = PARTICLES;
    xs = filled(PARTICLES * sizeof *xs);
    vxs = filled(PARTICLES * sizeof *vxs);
    for (int i = 0; i < PARTICLES; i++)
        xs[i] = i % 31, vxs[i] = i % 3;
}

static uint64_t drift_components(void) {
    for (int i = 0; i < count; i++)
        xs[i] += vxs[i];
    return (uint64_t)(xs[5] + 3 * xs[PARTICLES - 1]);
}

/* flaw: stations */
struct reading {
    float temperature, pressure, humidity, wind, rain, sun, snow, cloud;
};

enum { READINGS = 4 << 20 };

static struct reading *readings;
static float *temperatures;

static float temperature_of(int i) { return (float)((i * 7) % 41); }

static void take_readings(void) {
    count = READINGS;
    readings = filled(READINGS * sizeof *readings);
    for (int i = 0; i < READINGS; i++)
        readings[i].temperature = temperature_of(i);
}

static uint64_t warm_readings(void) {
    int warm = 0;
    /* flaw: stations */
    for (int i = 0; i < count; i++)
        warm += readings[i].temperature > 25;
    return (uint64_t)warm;
}

static void take_temperatures(void) {
    count = READINGS;
    temperatures = filled(READINGS * sizeof *temperatures);
    for (int i = 0; i < READINGS; i++)
        temperatures[i] = temperature_of(i);
}

static uint64_t warm_temperatures(void) {
    int warm = 0;
    for (int i = 0; i < count; i++)
        warm += temperatures[i] > 25;
    return (uint64_t)warm;
}

/* Three fields that are used together, on three of the four lines of a structure. */
/* flaw: accounts */
struct account {
    int64_t balance;
    char owner[120];
    int64_t limit;
    char notes[56];
    int64_t reserved;
    char address[56];
};

/* The same fields in another order. */
struct account_reordered {
    int64_t balance;
    int64_t limit;
    int64_t reserved;
    char owner[120];
    char notes[56];
    char address[56];
};

enum { ACCOUNTS = 500000, BOOKINGS = 1 << 18 };

static struct account *accounts;
static struct account_reordered *reordered;
static struct three { int64_t balance, limit, reserved; } *balances;
static uint32_t *bookings;

static void take_bookings(void) {
    count = BOOKINGS;
    bookings = filled(BOOKINGS * sizeof *bookings);
    for (int i = 0; i < BOOKINGS; i++)
        bookings[i] = (uint32_t)below(ACCOUNTS);
}

static void take_accounts(void) {
    accounts = filled_aligned(((size_t)ACCOUNTS * sizeof *accounts >> 21 << 21) + (2 << 20), 0);
    for (int i = 0; i < ACCOUNTS; i++)
        accounts[i].balance = i % 1000, accounts[i].limit = i % 700, accounts[i].reserved = i % 90;
    take_bookings();
}

static void take_reordered(void) {
    reordered = filled_aligned(((size_t)ACCOUNTS * sizeof *reordered >> 21 << 21) + (2 << 20), 0);
    for (int i = 0; i < ACCOUNTS; i++)
        reordered[i].balance = i % 1000, reordered[i].limit = i % 700, reordered[i].reserved = i % 90;
    take_bookings();
}

static void take_balances(void) {
    balances = filled_aligned(((size_t)ACCOUNTS * sizeof *balances >> 21 << 21) + (2 << 20), 0);
    for (int i = 0; i < ACCOUNTS; i++)
        balances[i].balance = i % 1000, balances[i].limit = i % 700, balances[i].reserved = i % 90;
    take_bookings();
}

static uint64_t check_accounts(void) {
    int64_t over = 0;
    /* flaw: accounts */
    for (int i = 0; i < count; i++) {
        const struct account *account = &accounts[bookings[i]];
        over += account->balance - account->reserved > account->limit;
    }
    return (uint64_t)over;
}

static uint64_t check_reordered(void) {
    int64_t over = 0;
    for (int i = 0; i < count; i++) {
        const struct account_reordered *account = &reordered[bookings[i]];
        over += account->balance - account->reserved > account->limit;
    }
    return (uint64_t)over;
}

static uint64_t check_balances(void) {
    int64_t over = 0;
    for (int i = 0; i < count; i++) {
        const struct three *account = &balances[bookings[i]];
        over += account->balance - account->reserved > account->limit;
    }
    return (uint64_t)over;
}

/* A walk in the order of the addresses: three lines of a structure in place of one. */
/* flaw: cells */
struct cell {
    double pressure;
    char history[56];
    double opening;
    char place[56];
    double flow;
    char name[56];
};

struct cell_reordered {
    double pressure, opening, flow;
    char history[56];
    char place[56];
    char name[56];
};

enum { CELLS = 400000 };

static struct cell *cells;
static struct cell_reordered *cells_reordered;
static double *pressures, *openings, *flows;

static void take_cells(void) {
    count = CELLS;
    cells = filled_aligned(((size_t)CELLS * sizeof *cells >> 21 << 21) + (2 << 20), 0);
    for (int i = 0; i < CELLS; i++)
        cells[i].pressure = i % 23, cells[i].opening = i % 2, cells[i].flow = i % 5;
}

static void take_cells_reordered(void) {
    count = CELLS;
    cells_reordered = filled_aligned(((size_t)CELLS * sizeof *cells_reordered >> 21 << 21) + (2 << 20), 0);
    for (int i = 0; i < CELLS; i++)
        cells_reordered[i].pressure = i % 23, cells_reordered[i].opening = i % 2, cells_reordered[i].flow = i % 5;
}

static uint64_t power_of_cells(void) {
    double power = 0;
    /* flaw: cells */
    for (int i = 0; i < count; i++)
        power += cells[i].pressure * cells[i].opening * cells[i].flow;
    return (uint64_t)power;
}

static uint64_t power_of_cells_reordered(void) {
    double power = 0;
    for (int i = 0; i < count; i++)
        power += cells_reordered[i].pressure * cells_reordered[i].opening * cells_reordered[i].flow;
    return (uint64_t)power;
}

static void take_flows(void) {
    count = CELLS;
    pressures = filled(CELLS * sizeof *pressures);
    openings = filled(CELLS * sizeof *openings);
    flows = filled(CELLS * sizeof *flows);
    for (int i = 0; i < CELLS; i++)
        pressures[i] = i % 23, openings[i] = i % 2, flows[i] = i % 5;
}

static uint64_t power_of_flows(void) {
    double power = 0;
    for (int i = 0; i < count; i++)
        power += pressures[i] * openings[i] * flows[i];
    return (uint64_t)power;
}

KERNELS({"orders", {{"flawed", take_orders, turnover_of_orders}, {"mended", take_prices, turnover_of_prices}}, 1},
        {"members", {{"flawed", take_members, find_members}, {"mended", take_entries, find_entries}}, 1},
        {"particles", {{"flawed", take_particles, drift_particles}, {"mended", take_components, drift_components}}, 1},
        {"stations", {{"flawed", take_readings, warm_readings}, {"mended", take_temperatures, warm_temperatures}}, 1},
        {"accounts",
         {{"flawed", take_accounts, check_accounts},
          {"mended", take_reordered, check_reordered},
          {"split", take_balances, check_balances}},
         1},
        {"cells",
         {{"flawed", take_cells, power_of_cells},
          {"mended", take_cells_reordered, power_of_cells_reordered},
          {"split", take_flows, power_of_flows}},
         1})
