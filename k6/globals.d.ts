/** The part of k6's console that the scripts use; `@types/k6` leaves it out. */
declare const console: {
  log(...values: unknown[]): void;
};
