// What kinds.c only declares.
struct hidden { int first; int second; };
struct hidden hidden_object = {1, 2};
void *hidden_field(void) { return &hidden_object.second; }
