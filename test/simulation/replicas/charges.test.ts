/** What is charged, paced by three replicas that share a Redis. */
import { chargeScenarios } from '../charge-scenarios.ts';

chargeScenarios(3);
