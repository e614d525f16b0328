export const chart: string;
